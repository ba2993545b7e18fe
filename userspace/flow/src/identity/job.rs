//! The rank of a process in its job, and the job's size and name: stated by a source, or else derived.

use serde::{Deserialize, Serialize};

use super::{JobVariable, Whose};
use crate::schema::named::named;

/// Source of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum JobSource {
    // Before the variables, as any name that is not known counts as one.
    Other(Stated),
    /// This variable of the initial environment.
    Variable(JobVariable),
}

named! {
    /// Sources besides the environment.
    Stated {
        /// `--rank-map`.
        RankMap = "rank-map",
        /// `--job`.
        Option = "option",
        /// No source: the rank in, and the size of, the largest communicator that was seen.
        Derived = "derived",
    }
}

impl JobSource {
    /// Tells that nothing states the value.
    pub fn is_derived(self) -> bool {
        matches!(self, Self::Other(Stated::Derived))
    }

    /// Returns the name by which the source is written.
    pub fn name(self) -> &'static str {
        match self {
            Self::Variable(variable) => variable.name(),
            Self::Other(stated) => stated.name(),
        }
    }
}

/// A process in its job. Each value has its source; both are `None` where the value is not known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Job {
    pub rank: Option<u32>,
    pub rank_source: Option<JobSource>,
    pub size: Option<u32>,
    pub size_source: Option<JobSource>,
    pub local_rank: Option<u32>,
    pub local_rank_source: Option<JobSource>,
    pub name: Option<String>,
    pub name_source: Option<JobSource>,
    /// Variables with a rank that cannot be the job's, as a communicator is larger than the job would be:
    /// they belong to the process that started this one, or number nodes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<JobVariable>,
}

/// The largest communicator of a process, or of one of its GPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Largest {
    /// Number of ranks; 0 if no communicator is known.
    pub n_ranks: u32,
    /// Rank in this communicator; `None` if the process has several.
    pub rank: Option<u32>,
}

impl Largest {
    /// Takes note of a rank of a communicator of this size.
    pub fn note(&mut self, n_ranks: u32, rank: u32) {
        if n_ranks > self.n_ranks {
            *self = Self { n_ranks, rank: Some(rank) };
        } else if n_ranks == self.n_ranks && self.rank != Some(rank) {
            self.rank = None;
        }
    }
}

impl Job {
    /// Derives the job of a process from what is known of it. A variable whose job is smaller than a
    /// communicator of the process is not believed: `mp.spawn` and Ray start processes that inherit the rank
    /// of another, and launchers of pods set `RANK` to the number of the node.
    pub fn of(facts: &Whose, largest: Largest) -> Self {
        let mut job = Self::default();
        job.take_rank(facts, largest);
        let named = facts.named_job.clone().map(|name| (name, JobSource::Other(Stated::Option)));
        let slurm = || {
            let id = facts.environment.as_ref()?.text(JobVariable::SlurmJobId)?;
            Some((id.to_owned(), JobSource::Variable(JobVariable::SlurmJobId)))
        };
        (job.name, job.name_source) = named.or_else(slurm).unzip();
        job
    }

    fn take_rank(&mut self, facts: &Whose, largest: Largest) {
        let number = |variable| facts.environment.as_ref()?.number(variable);
        let mut found = None;
        for (rank, size) in JobVariable::RANKS {
            let Some(value) = number(rank) else { continue };
            let total = size.and_then(|size| Some((number(size)?, size)));
            if total.is_some_and(|(total, _)| value >= total || total < largest.n_ranks) {
                self.refused.push(rank);
            } else if found.is_none() {
                found = Some((value, rank, total));
            }
        }
        if let Some((value, rank, total)) = found {
            (self.rank, self.rank_source) = (Some(value), Some(JobSource::Variable(rank)));
            (self.size, self.size_source) = total.map(|(total, of)| (total, JobSource::Variable(of))).unzip();
        }
        if let Some(local) = number(JobVariable::LocalRank)
            && !self.refused.contains(&JobVariable::Rank)
        {
            self.local_rank = Some(local);
            self.local_rank_source = Some(JobSource::Variable(JobVariable::LocalRank));
        }
        if let Some(mapped) = facts.mapped_rank {
            (self.rank, self.rank_source) = (Some(mapped), Some(JobSource::Other(Stated::RankMap)));
        }
        // Where no source states a rank, it is that in the largest communicator.
        if self.rank.is_none() {
            let derived = Some(JobSource::Other(Stated::Derived));
            (self.rank, self.rank_source) = (largest.rank, largest.rank.and(derived));
            if largest.n_ranks > 0 && self.size.is_none() {
                (self.size, self.size_source) = (Some(largest.n_ranks), derived);
            }
        }
    }

    /// Returns the rank of one of the process's GPUs, by its own largest communicator, or the rank of the
    /// process where a source states one.
    pub fn rank_of_gpu(&self, largest: Largest) -> Option<(u32, JobSource)> {
        let derived = JobSource::Other(Stated::Derived);
        let stated = self.rank.zip(self.rank_source).filter(|(_, source)| *source != derived);
        stated.or_else(|| largest.rank.map(|rank| (rank, derived)))
    }
}

#[cfg(test)]
mod tests {
    use super::{
        JobVariable::{LocalRank, OmpiCommWorldRank, OmpiCommWorldSize, PmixRank, Rank, SlurmJobId},
        JobVariable::{SlurmNtasks, SlurmProcid, WorldSize},
        *,
    };
    use crate::identity::Variables;

    fn job(pairs: &[(JobVariable, &str)], largest: Largest) -> Job {
        let environment = Some(Variables::of(pairs));
        Job::of(&Whose { environment, ..Whose::default() }, largest)
    }

    fn rank(job: &Job) -> Option<(u32, &'static str)> {
        job.rank.zip(job.rank_source.map(JobSource::name))
    }

    const OF_8: Largest = Largest { n_ranks: 8, rank: Some(5) };

    #[test]
    fn who_starts_the_training_process_comes_before_who_started_its_starter() {
        let under_srun = [(Rank, "9"), (WorldSize, "16"), (LocalRank, "1"), (SlurmProcid, "1")];
        let found = job(&[&under_srun[..], &[(SlurmNtasks, "2"), (SlurmJobId, "77")]].concat(), OF_8);
        assert_eq!(rank(&found), Some((9, "RANK")));
        assert_eq!((found.size, found.local_rank, found.name.as_deref()), (Some(16), Some(1), Some("77")));
        assert_eq!(found.refused, [SlurmProcid], "two tasks, each of one node");
    }

    /// Covers torch.multiprocessing.spawn under srun, and a pod with RANK and WORLD_SIZE of nodes.
    #[test]
    fn a_rank_that_was_inherited_is_not_believed() {
        for (rank_of, size) in
            [(Rank, WorldSize), (SlurmProcid, SlurmNtasks), (OmpiCommWorldRank, OmpiCommWorldSize)]
        {
            let found = job(&[(rank_of, "1"), (size, "2")], OF_8);
            assert_eq!(rank(&found), Some((5, "derived")));
            assert_eq!((found.size, found.refused.as_slice()), (Some(8), &[rank_of][..]));
            assert_eq!(rank(&job(&[(rank_of, "1"), (size, "8")], OF_8)), Some((1, rank_of.name())));
            assert_eq!(
                rank(&job(&[(rank_of, "8"), (size, "8")], OF_8)),
                Some((5, "derived")),
                "no such rank"
            );
        }
        assert_eq!(rank(&job(&[(PmixRank, "3")], OF_8)), Some((3, "PMIX_RANK")), "nobody says a size");
    }

    #[test]
    fn what_the_user_says_comes_first() {
        let environment = Some(Variables::of(&[(Rank, "1"), (WorldSize, "8"), (SlurmJobId, "77")]));
        let named_job = Some("llm".to_owned());
        let facts = Whose { environment, mapped_rank: Some(6), named_job, ..Whose::default() };
        let found = Job::of(&facts, OF_8);
        assert_eq!(rank(&found), Some((6, "rank-map")));
        assert_eq!((found.size, found.name.as_deref()), (Some(8), Some("llm")));
        let text = serde_json::to_string(&found).unwrap();
        assert!(
            text.contains(r#""rank_source":"rank-map""#) && text.contains(r#""size_source":"WORLD_SIZE""#),
            "{text}"
        );
    }

    /// Covers ranks that are threads of one process.
    #[test]
    fn a_process_of_several_ranks_has_none_but_its_gpus_have() {
        let mut largest = Largest::default();
        for (n_ranks, rank) in [(2, 0), (4, 1), (4, 1), (2, 1)] {
            largest.note(n_ranks, rank);
        }
        assert_eq!(largest, Largest { n_ranks: 4, rank: Some(1) });
        let of_gpu = largest;
        largest.note(4, 3);
        let found = job(&[(Rank, "0"), (WorldSize, "1")], largest);
        assert_eq!((rank(&found), found.size), (None, Some(4)));
        assert_eq!(
            found.rank_of_gpu(of_gpu).map(|(rank, source)| (rank, source.name())),
            Some((1, "derived"))
        );
        let stated = job(&[(PmixRank, "3")], largest);
        assert_eq!(stated.rank_of_gpu(of_gpu).map(|(rank, _)| rank), Some(3));
        assert_eq!(rank(&job(&[], Largest::default())), None);
    }
}
