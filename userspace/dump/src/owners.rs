//! Owners of ranks. The hash that tells communicators apart stands in the memory of processes, and a tenant
//! can write any into its own. So ranks of one hash are told apart by user and job before they are judged.

use inspect::{
    identity::read_variables,
    process::{Description, Process},
};
use std::{
    borrow::Borrow,
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use serde::{Deserialize, Serialize};

use super::RankReport;
use flow::{
    identity::JobVariable,
    text::{cut_right, joined},
};

/// Owner of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Owner {
    pub uid: u32,
    /// Name in the host's `/etc/passwd`; the number where that has no name.
    pub user: String,
    /// `SLURM_JOB_ID` of the initial environment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
    /// Container: `containerd:0123456789ab`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// UID of the Kubernetes pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
}

impl Owner {
    /// Reads the owner of a process, which has this description.
    pub(super) fn read(process: &Process, description: Description) -> Self {
        let Description { uid, user, container, .. } = description;
        let environment = read_variables(process);
        let job = environment.as_ref().and_then(|known| known.text(JobVariable::SlurmJobId));
        Self {
            uid,
            user,
            job: job.map(str::to_owned),
            container: container.as_ref().map(flow::identity::Container::short),
            pod: container.and_then(|container| container.pod),
        }
    }

    /// Returns what the owners of processes of one job have in common; `is_here`: the processes are on one host.
    pub(super) fn compared(&self, is_here: bool) -> impl PartialEq + use<'_> {
        let Self { uid, user, job, container, pod } = self;
        (uid, user, job, is_here.then_some((container, pod)))
    }

    /// Returns the user's name, where the host has one.
    fn known_user(&self) -> Option<&str> {
        (self.user != self.uid.to_string()).then_some(&*self.user)
    }

    /// Names the owner: `user ann, job 17`.
    fn named(&self) -> String {
        let job = self.job.as_ref().map_or_else(String::new, |job| format!(", job {}", cut(job)));
        format!("user {}{job}", cut(&self.user))
    }
}

/// Maximum number of groups of ranks of one hash and size: a host's answer can have any number of owners.
const MAX_GROUPS: usize = 64;
/// Maximum number of other groups that a verdict tells of, and of owners and ranks that are named of each.
const SHOWN: usize = 8;
/// Maximum number of characters of a name that another host gives.
const MAX_NAME: usize = 64;

fn cut(name: &str) -> String {
    cut_right(name, Some(MAX_NAME))
}

/// User and job.
type Whose<'a> = (u32, Option<&'a str>);

/// Container; `None` for a process outside of containers.
type Container<'a> = Option<&'a str>;

/// Ranks that claim to be of one communicator, and that are judged together.
#[derive(Debug)]
pub(super) struct Claim<R> {
    pub(super) ranks: Vec<R>,
    /// Sentences on the others that claim the same communicator.
    pub(super) others: Vec<String>,
    /// Sentence on why a verdict on these ranks does not count.
    pub(super) doubt: Option<String>,
}

/// Ranks of one owner, or of several that may be one.
#[derive(Debug, Default)]
struct Group<'r> {
    /// Places of the ranks among all.
    members: Vec<usize>,
    numbers: BTreeSet<u32>,
    /// Hosts of the ranks whose owner is known.
    hosts: BTreeSet<&'r str>,
    uids: BTreeSet<u32>,
    /// Name of the user, where a host has one for the number.
    user: Option<&'r str>,
    /// All owners that are known have that name.
    is_named: bool,
    job: Option<&'r str>,
    /// Another container claims one of the ranks.
    is_contested: bool,
    /// Names of the first owners.
    names: Vec<String>,
    n_owners: usize,
}

impl<'r> Group<'r> {
    /// `contested`: the container, if the ranks are told apart by it.
    fn new(owner: Option<&'r Owner>, job: Option<&'r str>, contested: Option<Container<'_>>) -> Self {
        let user = owner.and_then(Owner::known_user);
        let name = owner.map_or_else(|| "an unknown user".to_owned(), Owner::named);
        let container = contested.map_or_else(String::new, |container| {
            container.map_or_else(|| ", no container".to_owned(), |id| format!(", container {}", cut(id)))
        });
        Self {
            uids: owner.iter().map(|owner| owner.uid).collect(),
            user,
            is_named: owner.is_none() || user.is_some(),
            job,
            is_contested: contested.is_some(),
            names: vec![name + &container],
            n_owners: 1,
            ..Self::default()
        }
    }

    fn add(&mut self, at: usize, rank: &'r RankReport, is_known: bool) {
        self.members.push(at);
        self.numbers.insert(rank.rank);
        if is_known {
            self.hosts.insert(&rank.host);
        }
    }

    /// Tells whether nothing speaks against one owner of both. Ranks whose owner an older dump does not tell
    /// conflict with none.
    fn fits(&self, other: &Self) -> bool {
        let agree =
            |one: Option<&str>, other: Option<&str>| one.zip(other).is_none_or(|(one, other)| one == other);
        // A user who has one number on several hosts has it on all: then only a name can make two one.
        let are_of_namespaces = || self.has_own_numbers() && other.has_own_numbers();
        let is_named = || self.user.is_some() && other.user.is_some();
        let may_be_one = || {
            agree(self.user, other.user) && agree(self.job, other.job) && (is_named() || are_of_namespaces())
        };
        !(self.is_contested || other.is_contested)
            // Parts of one job of a user, on other hosts, can have numbers of their own.
            && (!self.uids.is_disjoint(&other.uids) || may_be_one())
            && self.numbers.is_disjoint(&other.numbers)
            && self.hosts.is_disjoint(&other.hosts)
    }

    /// Tells whether the owner has another number on each host, as users in namespaces have, or none is known.
    fn has_own_numbers(&self) -> bool {
        self.uids.is_empty() || self.uids.len() >= self.hosts.len()
    }

    fn join(&mut self, other: Self) {
        self.members.extend(other.members);
        self.numbers.extend(other.numbers);
        self.hosts.extend(other.hosts);
        self.is_named &= other.is_named;
        self.uids.extend(other.uids);
        self.user = self.user.or(other.user);
        self.job = self.job.or(other.job);
        let space = SHOWN.saturating_sub(self.names.len());
        self.names.extend(other.names.into_iter().take(space));
        self.n_owners += other.n_owners;
    }

    /// Says why the ranks may be of several owners, if they were joined over hosts and only numbers of users
    /// are known, which differ.
    fn doubt(&self) -> Option<String> {
        (self.uids.len() > 1 && !self.is_named).then(|| {
            format!(
                "cannot tell, because the ranks are of other users on each host ({}): of one job with user \
                 namespaces, or forged by another user; if they are of one job:",
                self.owners()
            )
        })
    }

    fn owners(&self) -> String {
        let names = self.names.join(" and ");
        match self.n_owners.saturating_sub(self.names.len()) {
            0 => names,
            more => format!("{names} and {more} more"),
        }
    }

    fn claim(&self) -> String {
        let numbers = joined(self.numbers.iter().take(SHOWN), ", ");
        let more = if self.numbers.len() > SHOWN { " …" } else { "" };
        format!(
            "processes of {} claim to be ranks {numbers}{more} of a communicator with the same hash: they are \
             judged separately",
            self.owners()
        )
    }
}

/// Tells ranks of one hash and size apart by their owners, and adds sentences on the other owners that claim
/// the same communicator.
///
/// Ranks of different owners stay together only where nothing speaks against it, on different hosts and with
/// different numbers: with user namespaces, the users of one job can have other numbers on each host. But
/// nothing proves that they are one job, so that a verdict on them does not count. A number that is the same on
/// several hosts proves it: names can be missing, as those of LDAP do.
///
/// Pods of several tenants often have one user, and a job can have several pods. So the ranks of one owner are
/// told apart by container only where two containers claim one rank.
pub(super) fn tell_apart<'o, R: Borrow<RankReport>>(
    ranks: Vec<R>,
    owner_of: &impl Fn(&RankReport) -> Option<&'o Owner>,
) -> Vec<Claim<R>> {
    let groups = groups(&ranks, owner_of);
    let said: Vec<String> = groups.iter().take(SHOWN + 1).map(Group::claim).collect();
    let more = groups.len().saturating_sub(SHOWN + 1);
    let of_group = |(at, group): (usize, &Group<'_>)| {
        let others = said.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, said)| said.clone());
        let more = (more > 0).then(|| format!("and {more} more groups of ranks claim the same"));
        let too_many = (at == MAX_GROUPS).then(|| {
            format!("cannot tell, because too many owners claim the communicator: {} more", group.n_owners)
        });
        let doubt = too_many.or_else(|| group.doubt());
        (group.members.clone(), others.take(SHOWN).chain(more).collect(), doubt)
    };
    let of_groups: Vec<(Vec<usize>, Vec<String>, Option<String>)> =
        groups.iter().enumerate().map(of_group).collect();
    let mut ranks: Vec<Option<R>> = ranks.into_iter().map(Some).collect();
    let mut taken =
        |members: Vec<usize>| members.into_iter().filter_map(|at| ranks.get_mut(at)?.take()).collect();
    of_groups
        .into_iter()
        .map(|(members, others, doubt)| Claim { ranks: taken(members), others, doubt })
        .collect()
}

/// Groups ranks by their owners. The last of more than [`MAX_GROUPS`] has all that are left.
fn groups<'r, 'o: 'r, R: Borrow<RankReport> + 'r>(
    ranks: &'r [R],
    owner_of: &impl Fn(&RankReport) -> Option<&'o Owner>,
) -> Vec<Group<'r>> {
    // The user is known even of a process whose environment cannot be read.
    let mut jobs: BTreeMap<u32, BTreeSet<&str>> = BTreeMap::new();
    for owner in ranks.iter().filter_map(|rank| owner_of(rank.borrow())) {
        jobs.entry(owner.uid).or_default().extend(owner.job.as_deref());
    }
    let whose = |owner: &'o Owner| -> Whose<'o> {
        let of_user = jobs.get(&owner.uid).filter(|of_user| of_user.len() == 1);
        (owner.uid, owner.job.as_deref().or(of_user.and_then(|jobs| jobs.first().copied())))
    };
    let claim = |rank: &RankReport| {
        let owner = owner_of(rank)?;
        Some((whose(owner), owner.container.as_deref()))
    };
    let contested =
        contested(ranks.iter().filter_map(|rank| Some((rank.borrow().rank, claim(rank.borrow())?))));
    let mut by_owner: BTreeMap<Option<(Whose<'_>, Option<Container<'_>>)>, Group<'_>> = BTreeMap::new();
    for (at, rank) in ranks.iter().map(Borrow::borrow).enumerate() {
        let owner = owner_of(rank);
        let claim = claim(rank);
        let contested = claim.filter(|claim| contested.contains(claim)).map(|(_, container)| container);
        let key = claim.map(|(whose, _)| (whose, contested));
        let new = || Group::new(owner, claim.and_then(|((_, job), _)| job), contested);
        by_owner.entry(key).or_insert_with(new).add(at, rank, owner.is_some());
    }
    let mut owners: Vec<Group<'_>> = by_owner.into_values().collect();
    owners.sort_by_key(|group| Reverse(group.members.len()));
    // A user who claims to have many jobs crowds out no other user.
    let mut turns: BTreeMap<Option<u32>, usize> = BTreeMap::new();
    let mut owners: Vec<(usize, Group<'_>)> = owners
        .into_iter()
        .map(|group| {
            let turn = turns.entry(group.uids.first().copied()).or_default();
            *turn += 1;
            (*turn, group)
        })
        .collect();
    owners.sort_by_key(|(turn, _)| *turn);
    let mut groups: Vec<Group<'_>> = Vec::new();
    for (_, new) in owners {
        let fits = groups.iter().take(MAX_GROUPS).position(|known| known.fits(&new));
        match groups.get_mut(fits.unwrap_or(MAX_GROUPS)) {
            Some(known) => known.join(new),
            None => groups.push(new),
        }
    }
    groups
}

/// Returns the owners' containers that claim a rank which another container of the same owner claims, too.
fn contested<'o>(
    claims: impl Iterator<Item = (u32, (Whose<'o>, Container<'o>))>,
) -> BTreeSet<(Whose<'o>, Container<'o>)> {
    let mut claimants: BTreeMap<(Whose<'_>, u32), BTreeSet<Container<'_>>> = BTreeMap::new();
    for (rank, (whose, container)) in claims {
        claimants.entry((whose, rank)).or_default().insert(container);
    }
    let several = claimants.into_iter().filter(|(_, containers)| containers.len() > 1);
    several.flat_map(|((whose, _), all)| all.into_iter().map(move |container| (whose, container))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DumpReport, Motion, ProcessReport, State};

    fn rank(rank: u32, host: &str, pid: u32) -> RankReport {
        RankReport { rank, host: host.to_owned(), pid, n_ranks: 4, ..RankReport::default() }
    }

    fn process(host: &str, pid: u32, uid: u32, job: Option<&str>) -> ProcessReport {
        let (user, job) = (uid.to_string(), job.map(str::to_owned));
        let owner = Owner { uid, user, job, ..Owner::default() };
        ProcessReport { host: host.to_owned(), pid, owner: Some(owner), ..ProcessReport::default() }
    }

    fn claims(ranks: Vec<RankReport>, processes: &[ProcessReport]) -> Vec<Claim<RankReport>> {
        tell_apart(ranks, &|rank| ProcessReport::of(rank, processes)?.owner.as_ref())
    }

    fn numbers(ranks: Vec<RankReport>, processes: &[ProcessReport]) -> Vec<Vec<u32>> {
        let claims = claims(ranks, processes);
        claims.iter().map(|claim| claim.ranks.iter().map(|rank| rank.pid).collect()).collect()
    }

    #[test]
    fn another_user_who_writes_the_same_hash_is_told_apart_with_and_without_a_rank_twice() {
        let processes =
            [process("a", 1, 1000, None), process("a", 2, 1000, None), process("a", 3, 666, None)];
        let of = |forged| vec![rank(0, "a", 1), rank(1, "a", 2), rank(forged, "a", 3)];
        assert_eq!(numbers(of(1), &processes), [vec![1, 2], vec![3]]);
        assert_eq!(numbers(of(2), &processes), [vec![1, 2], vec![3]], "a rank that nobody else has");
        let claims = claims(of(2), &processes);
        assert!(claims[0].others[0].starts_with("processes of user 666 claim to be ranks 2 of"));
        assert_eq!(numbers(vec![rank(0, "a", 1), rank(1, "a", 2)], &processes), [vec![1, 2]]);
    }

    #[test]
    fn two_jobs_of_one_user_are_told_apart_where_it_is_known() {
        let processes = [
            process("a", 1, 1000, Some("17")),
            process("b", 2, 1000, Some("17")),
            process("a", 3, 1000, Some("18")),
            process("a", 4, 1000, None),
        ];
        let all = vec![rank(0, "a", 1), rank(1, "b", 2), rank(2, "a", 3)];
        assert_eq!(numbers(all, &processes), [vec![1, 2], vec![3]]);
        let unread = vec![rank(0, "a", 1), rank(1, "b", 2), rank(2, "a", 4)];
        assert_eq!(numbers(unread, &processes), [vec![1, 2, 4]], "its environment could not be read");
        let parts = [process("a", 1, 1000, Some("17")), process("b", 2, 1000, Some("18"))];
        let of_parts = vec![rank(0, "a", 1), rank(1, "b", 2)];
        assert_eq!(numbers(of_parts, &parts), [vec![1, 2]], "a heterogeneous job of Slurm");
    }

    #[test]
    fn users_with_other_numbers_on_each_host_are_one_job_while_nothing_speaks_against_it() {
        let processes = [process("a", 1, 100_000, None), process("b", 1, 165_536, None)];
        assert_eq!(numbers(vec![rank(0, "a", 1), rank(1, "b", 1)], &processes), [vec![1, 1]]);
        assert_eq!(numbers(vec![rank(0, "a", 1), rank(0, "b", 1)], &processes).len(), 2);
        let doubt = |processes: &[ProcessReport]| {
            claims(vec![rank(0, "a", 1), rank(1, "b", 1)], processes)[0].doubt.clone()
        };
        assert!(doubt(&processes).unwrap().contains("(user 100000 and user 165536)"));
        assert_eq!(doubt(&[process("a", 1, 1000, None), process("b", 1, 1000, None)]), None);
        let older = [ProcessReport { host: "a".into(), pid: 1, ..ProcessReport::default() }];
        assert_eq!(numbers(vec![rank(0, "a", 1), rank(1, "b", 1)], &older), [vec![1, 1]]);
    }

    /// Users whom no `/etc/passwd` names, as those of LDAP.
    #[test]
    fn a_number_that_is_one_on_several_hosts_is_the_owner_and_a_forged_rank_makes_no_doubt() {
        let processes = [("a", 1000), ("b", 1000), ("c", 666), ("d", 666), ("c", 1000)]
            .map(|(host, uid)| process(host, uid, uid, None));
        let of = |number, host, uid| rank(number, host, uid);
        let job = || vec![of(0, "a", 1000), of(1, "b", 1000)];
        let told = claims([job(), vec![of(2, "c", 666)]].concat(), &processes);
        let pids: Vec<Vec<u32>> =
            told.iter().map(|claim| claim.ranks.iter().map(|rank| rank.pid).collect()).collect();
        assert_eq!(pids, [vec![1000, 1000], vec![666]]);
        assert!(told.iter().all(|claim| claim.doubt.is_none()));
        assert!(told[0].others[0].starts_with("processes of user 666 claim to be ranks 2 of"), "{told:?}");
        // On two hosts, and beside the job on one of its hosts.
        let forged = vec![of(2, "c", 666), of(3, "d", 666)];
        assert_eq!(numbers([job(), forged].concat(), &processes), [vec![666, 666], vec![1000, 1000]]);
        let on_three = [job(), vec![of(3, "c", 1000), of(2, "c", 666)]].concat();
        assert_eq!(numbers(on_three, &processes), [vec![1000, 1000, 1000], vec![666]]);
    }

    #[test]
    fn any_number_of_owners_makes_few_groups_and_sentences() {
        let owners: Vec<Owner> = (0..8000).map(|uid| Owner { uid, ..Owner::default() }).collect();
        let owner_of = |rank: &RankReport| owners.get(rank.pid as usize);
        let claims = tell_apart((0..8000).map(|pid| rank(0, "a", pid)).collect(), &owner_of);
        assert_eq!(claims.len(), MAX_GROUPS + 1);
        assert!(claims.iter().all(|claim| claim.others.len() == SHOWN + 1));
        assert_eq!(claims[0].others[SHOWN], "and 56 more groups of ranks claim the same");
        let (last, told_apart) = claims.split_last().unwrap();
        assert!(told_apart.iter().all(|claim| claim.ranks.len() == 1 && claim.doubt.is_none()));
        assert_eq!(last.ranks.len(), 8000 - MAX_GROUPS);
        let doubt = last.doubt.as_deref();
        assert_eq!(doubt, Some("cannot tell, because too many owners claim the communicator: 7936 more"));
    }

    #[test]
    fn a_user_with_many_jobs_crowds_out_no_other() {
        let job = |number: u32| Owner { job: Some(number.to_string()), uid: 666, ..Owner::default() };
        let owners: Vec<Owner> = (0..100).map(job).chain([Owner { uid: 1000, ..Owner::default() }]).collect();
        let owner_of = |rank: &RankReport| owners.get(rank.pid as usize / 2);
        let of_two = |owner: u32| [rank(0, "a", 2 * owner), rank(1, "a", 2 * owner + 1)];
        let forged = (0..100).flat_map(of_two);
        let claims = tell_apart(forged.chain([rank(0, "a", 200)]).collect(), &owner_of);
        let of_victim = claims.iter().find(|claim| claim.ranks.iter().any(|rank| rank.pid == 200)).unwrap();
        assert!(of_victim.ranks.len() == 1 && of_victim.doubt.is_none());
    }

    #[test]
    fn users_with_other_names_and_other_jobs_are_not_joined_over_hosts() {
        let named = |host: &str, uid, user: &str, job: Option<&str>| {
            let mut process = process(host, 1, uid, job);
            process.owner.as_mut().unwrap().user = user.to_owned();
            process
        };
        let claims =
            |processes: [ProcessReport; 2]| claims(vec![rank(0, "a", 1), rank(1, "b", 1)], &processes);
        let count = |processes| claims(processes).len();
        assert_eq!(count([named("a", 1001, "ann", None), named("b", 1002, "bob", None)]), 2);
        assert_eq!(count([named("a", 1001, "ann", Some("17")), named("b", 1002, "1002", Some("18"))]), 2);
        assert_eq!(count([named("a", 1001, "ann", None), named("b", 1001, "bob", None)]), 1, "one number");
        let one = claims([named("a", 1001, "ann", None), named("b", 2001, "ann", None)]);
        assert!(one.len() == 1 && one[0].doubt.is_none(), "one name");
        let one = claims([named("a", 1001, "ann", None), named("b", 1002, "1002", None)]);
        assert!(one.len() == 1 && one[0].doubt.is_some(), "a number without a name");
    }

    #[test]
    fn a_verdict_on_ranks_of_other_users_on_each_host_does_not_count() {
        let state = |uid| {
            let ranks = [rank(0, "a", 1), rank(1, "a", 2), rank(2, "b", 1)].map(|rank| RankReport {
                n_ranks: 3,
                motion: Motion { readings: 2, counters_moved: true, ..Motion::default() },
                ..rank
            });
            let of = |(host, pid, uid)| process(host, pid, uid, None);
            let processes = [("a", 1, 1002), ("a", 2, 1002), ("b", 1, uid)].map(of).to_vec();
            let report = DumpReport::judged(ranks.to_vec(), processes);
            (report.communicators.len(), report.state(), report.communicators[0].verdict.evidence.clone())
        };
        assert!(matches!(state(1002), (1, State::Healthy, _)));
        let (count, state, evidence) = state(1001);
        assert_eq!((count, state), (1, State::Unknown));
        assert!(evidence[0].starts_with("cannot tell, because the ranks are of other users on each host"));
        assert!(evidence.len() > 1, "what was seen is said: {evidence:?}");
    }

    #[test]
    fn containers_of_one_user_are_told_apart_where_two_claim_one_rank() {
        let pod = |host: &str, pid, container: &str| {
            let mut process = process(host, pid, 0, None);
            process.owner.as_mut().unwrap().container = Some(container.to_owned());
            process
        };
        let processes = [pod("a", 1, "A"), pod("a", 2, "B"), pod("b", 3, "C"), pod("a", 4, "X")];
        let job = || vec![rank(0, "a", 1), rank(1, "a", 2), rank(2, "b", 3)];
        assert_eq!(numbers(job(), &processes), [vec![1, 2, 3]], "a job of several pods and hosts");
        let forged = |number| [job(), vec![rank(number, "a", 4)]].concat();
        assert_eq!(numbers(forged(0), &processes), [vec![2, 3], vec![1], vec![4]]);
        assert_eq!(numbers(forged(2), &processes), [vec![1, 2], vec![3], vec![4]], "of another host");
        let told = claims(forged(0), &processes);
        assert!(told[1].others[1].starts_with("processes of user 0, container X claim to be ranks 0 of"));
        // Two communicators with one hash, or one dump given twice.
        assert_eq!(numbers([job(), job()].concat(), &processes).len(), 1);
        let bare = [process("a", 1, 0, None), process("b", 2, 0, None)];
        assert_eq!(numbers(vec![rank(0, "a", 1), rank(0, "b", 2)], &bare).len(), 1);
    }
}
