//! Owners of a recording's ranks. A communicator's hash comes from the memory of processes, and a tenant can
//! write any into its own. So ranks of one hash are told apart by user and job.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use flow::{
    identity::Whose,
    schema::{RankKey, comm_hash_name, comm_hash_of_name},
    session::SessionReport,
};

/// Names of user and job.
type Owner = String;

/// Communicators of one recording that several users or jobs claim.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    owners: HashMap<u32, Owner>,
    /// Owner of most ranks, by hash.
    contested: HashMap<u64, Option<Owner>>,
    /// Instances of a communicator, by hash, rank and owner.
    instances: HashMap<(u64, i32, Option<Owner>), BTreeSet<u32>>,
}

impl Claims {
    /// Takes the claims out of a report. While a recording goes on, its report has no ranks yet: then nothing
    /// is told apart.
    pub(super) fn of(session: &SessionReport) -> Self {
        let mut claims = Self::default();
        for target in session.targets.iter() {
            if let Some(Whose { user, .. }) = &target.whose {
                let job = target.job.as_ref().and_then(|job| job.name.as_ref());
                let job = job.map_or_else(String::new, |job| format!(", job {job}"));
                claims.owners.insert(target.pid, format!("user {user}{job}"));
            }
        }
        let mut ranks: HashMap<u64, BTreeMap<Option<Owner>, usize>> = HashMap::new();
        for row in &session.communicators {
            let Some(hash) = comm_hash_of_name(&row.comm_hash) else { continue };
            let instance =
                row.folder.rsplit_once('-').and_then(|(_, number)| number.parse().ok()).unwrap_or(0);
            let owner = claims.owners.get(&row.pid).cloned();
            *ranks.entry(hash).or_default().entry(owner.clone()).or_default() += 1;
            claims.instances.entry((hash, row.rank, owner)).or_default().insert(instance);
        }
        // An unknown user contradicts no other.
        let is_contested = |owners: &BTreeMap<Option<Owner>, usize>| {
            owners.keys().filter(|owner| owner.is_some()).count() > 1
        };
        for (hash, owners) in ranks.into_iter().filter(|(_, owners)| is_contested(owners)) {
            let most = owners.iter().max_by_key(|(_, ranks)| **ranks).map(|(owner, _)| owner.clone());
            claims.contested.insert(hash, most.flatten());
        }
        claims
    }

    /// Returns the name of a rank's communicator.
    pub(crate) fn name(&self, key: RankKey) -> String {
        let contested = key.hash.and_then(|hash| Some((hash, self.contested.get(&hash)?)));
        let Some((hash, most)) = contested else { return key.comm_name() };
        let owner = self.owners.get(&key.pid);
        let instances = self.instances.get(&(hash, key.rank, owner.cloned()));
        let before = instances.map_or(0, |instances| instances.range(..key.instance).count());
        let mut name = comm_hash_name(key.hash);
        if before > 0 {
            name = format!("{name}-{before}");
        }
        match owner {
            Some(owner) if Some(owner) != most.as_ref() => format!("{name} ({owner})"),
            _ => name,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two ranks of ann, and before the second one of another user with the same hash.
    const REPORT: &str = r#"{
        "targets": [{"pid": 1, "uid": 1000, "user": "ann", "job": {"name": "17"}},
                    {"pid": 2, "uid": 1000, "user": "ann", "job": {"name": "17"}},
                    {"pid": 3, "uid": 666, "user": "666", "job": null}],
        "communicators": [
            {"commHash": "0x000000000000000a", "folder": "0x000000000000000a", "rank": 0, "pid": 1},
            {"commHash": "0x000000000000000a", "folder": "0x000000000000000a", "rank": 1, "pid": 3},
            {"commHash": "0x000000000000000a", "folder": "0x000000000000000a-1", "rank": 1, "pid": 2},
            {"commHash": "0x000000000000000b", "folder": "0x000000000000000b-1", "rank": 0, "pid": 1},
            {"rank": "nonsense"}]}"#;

    #[test]
    fn who_writes_a_foreign_hash_gets_a_communicator_of_its_own_and_takes_no_number() {
        let claims = Claims::of(&SessionReport::parse(REPORT));
        let name = |hash, instance, rank, pid| claims.name(RankKey { hash: Some(hash), instance, rank, pid });
        assert_eq!(name(10, 0, 0, 1), "0x000000000000000a");
        assert_eq!(name(10, 1, 1, 2), "0x000000000000000a", "the same as its other rank");
        assert_eq!(name(10, 0, 1, 3), "0x000000000000000a (user 666)");
        assert_eq!(name(11, 1, 0, 1), "0x000000000000000b-1", "nobody else claims it");
        assert_eq!(claims.name(RankKey { hash: None, instance: 2, rank: 0, pid: 3 }), comm_name_of_none());
    }

    fn comm_name_of_none() -> String {
        RankKey { hash: None, instance: 2, rank: 0, pid: 3 }.comm_name()
    }

    #[test]
    fn what_is_no_report_tells_nothing_apart() {
        let key = RankKey { hash: Some(10), instance: 0, rank: 1, pid: 3 };
        for text in ["", "[]", "{}", r#"{"targets": 7}"#, r#"{"targets": [[]], "communicators": [1, {}]}"#] {
            assert_eq!(Claims::of(&SessionReport::parse(text)).name(key), key.comm_name(), "{text}");
        }
    }
}
