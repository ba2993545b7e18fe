//! Variables that launchers set in the initial environment of a rank's process.
//!
//! `/proc/PID/environ` has secrets, too. Only the variables that are listed here are looked at; nothing else
//! of the file is kept.

use std::{
    collections::BTreeMap,
    io::{self, Read},
};

use serde::{Deserialize, Serialize};

use crate::{schema::named::named, text::plain};

/// Most bytes of a variable that are looked at: its name and value.
const MAX_VARIABLE: usize = 256;

/// Most bytes of a value that are kept.
const MAX_VALUE: usize = 128;

named! {
    /// A variable that a launcher sets for each process of a job.
    #[derive(PartialOrd, Ord, Hash)]
    JobVariable {
        /// torchrun, DeepSpeed and others.
        Rank = "RANK",
        WorldSize = "WORLD_SIZE",
        LocalRank = "LOCAL_RANK",
        /// mpirun of Open MPI.
        OmpiCommWorldRank = "OMPI_COMM_WORLD_RANK",
        OmpiCommWorldSize = "OMPI_COMM_WORLD_SIZE",
        /// mpiexec of MPICH and Intel MPI, srun --mpi=pmi2.
        PmiRank = "PMI_RANK",
        PmiSize = "PMI_SIZE",
        /// Any launcher that uses PMIx.
        PmixRank = "PMIX_RANK",
        /// srun.
        SlurmProcid = "SLURM_PROCID",
        SlurmNtasks = "SLURM_NTASKS",
        SlurmJobId = "SLURM_JOB_ID",
        ;
        /// A variable that a newer version writes.
        #[serde(rename = "UNKNOWN")]
        Unknown = "?",
    }
}

impl JobVariable {
    /// Variables with the rank and the size that belong together. The launchers that start the training
    /// process itself come first.
    pub(super) const RANKS: [(Self, Option<Self>); 5] = [
        (Self::Rank, Some(Self::WorldSize)),
        (Self::OmpiCommWorldRank, Some(Self::OmpiCommWorldSize)),
        (Self::PmixRank, None),
        (Self::PmiRank, Some(Self::PmiSize)),
        (Self::SlurmProcid, Some(Self::SlurmNtasks)),
    ];
}

/// The listed variables of a process, as they were when it was started; without control characters, and
/// numbers where numbers belong.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Variables(BTreeMap<JobVariable, String>);

impl Variables {
    /// Takes the listed variables out of the bytes of an environment.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn parse(mut bytes: impl Read) -> io::Result<Self> {
        let (mut variables, mut chunk) = (Self::default(), vec![0; 64 << 10]);
        let (mut variable, mut is_long) = (Vec::with_capacity(MAX_VARIABLE), false);
        loop {
            let read = match bytes.read(&mut chunk) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                read => read?,
            };
            for byte in chunk.get(..read).unwrap_or_default() {
                if *byte != 0 {
                    is_long |= variable.len() == MAX_VARIABLE;
                    if !is_long {
                        variable.push(*byte);
                    }
                    continue;
                }
                if !is_long {
                    variables.note(&variable);
                }
                variable.clear();
                is_long = false;
            }
            if read == 0 {
                // The last variable ends with a zero too; one that does not is cut.
                return Ok(variables);
            }
        }
    }

    /// Notes a variable. The first of several with one name counts, as for getenv(3).
    fn note(&mut self, variable: &[u8]) {
        let Some(at) = variable.iter().position(|byte| *byte == b'=') else { return };
        let (name, value) = variable.split_at(at);
        let known = JobVariable::ALL.into_iter().find(|known| known.name().as_bytes() == name);
        let Some(known) = known else { return };
        let value = String::from_utf8_lossy(value.get(1..).unwrap_or_default());
        let value: String = plain(&value).chars().take(MAX_VALUE).collect();
        // A job's ID is a name. The other values are numbers, or say nothing.
        let is_name = known == JobVariable::SlurmJobId && !value.is_empty();
        if is_name || number(&value).is_some() {
            self.0.entry(known).or_insert(value);
        }
    }

    pub fn text(&self, variable: JobVariable) -> Option<&str> {
        self.0.get(&variable).map(String::as_str)
    }

    pub fn number(&self, variable: JobVariable) -> Option<u32> {
        number(self.text(variable)?)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Makes variables with these values.
    pub fn of(pairs: &[(JobVariable, &str)]) -> Self {
        Self(pairs.iter().map(|(variable, value)| (*variable, (*value).to_owned())).collect())
    }
}

/// Parses digits only: `str::parse` takes a sign.
fn number(text: &str) -> Option<u32> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_listed_is_kept_and_numbers_are_numbers() {
        let text = "SECRET=7\0RANK=3\0RANK=4\0WORLD_SIZE=+8\0SLURM_JOB_ID=a\x1b[2Jb\0PMI_SIZE=\0LOCAL_RANK=99999999999\0XRANK=1\0PMIX_RANK";
        let variables = Variables::parse(text.as_bytes()).unwrap();
        let written = serde_json::to_string(&variables).unwrap();
        assert_eq!(written, "{\"RANK\":\"3\",\"SLURM_JOB_ID\":\"a\u{fffd}[2Jb\"}");
        assert_eq!(serde_json::from_str::<Variables>(&written).unwrap(), variables);
        assert_eq!(variables.number(JobVariable::Rank), Some(3));
        assert_eq!(variables.number(JobVariable::SlurmJobId), None);
    }

    #[test]
    fn a_variable_of_any_length_is_passed_over() {
        let mut text = b"A=".to_vec();
        text.resize(1 << 20, b'x');
        text.extend_from_slice(b"\0RANK=1\0SLURM_JOB_ID=");
        text.resize(text.len() + 1000, b'y');
        text.extend_from_slice(b"\0WORLD_SIZE=2\0");
        let variables = Variables::parse(text.as_slice()).unwrap();
        assert_eq!(variables, Variables::of(&[(JobVariable::Rank, "1"), (JobVariable::WorldSize, "2")]));
    }

    #[test]
    fn names_are_those_that_are_written() {
        for variable in JobVariable::ALL {
            assert_eq!(serde_json::to_value(variable).unwrap(), variable.name());
        }
    }
}
