//! Communicators as process groups, and their ranks as ranks of the job.

use std::collections::BTreeSet;

use anyhow::{Result, bail};
use flow::schema::{RankKey, comm_hash_name};

use super::{CommGroup, CommRank, FlightRecorder, MAX_GROUPS, MAX_MEMBERS, MAX_RANKS};
use crate::export::bounded::get_or_make;
use crate::sources::CallNumbers;
use torch::flight_recorder::{GlobalRanks, Places, ProcessGroup};

impl FlightRecorder {
    /// Returns the communicator's number, if the job's ranks of all its ranks are known.
    fn group(&mut self, key: RankKey, n_ranks: i32) -> Result<Option<u32>> {
        let (Some(hash), Ok(n_ranks)) = (key.hash, u32::try_from(n_ranks)) else { return Ok(None) };
        if let Some(known) = self.group_numbers.get(&(hash, key.instance)) {
            return Ok(*known);
        }
        if self.group_numbers.len() >= MAX_GROUPS {
            bail!("there are more than {MAX_GROUPS} communicators");
        }
        let known = self.job.known(hash);
        let of_job = known.iter().filter_map(|(rank, of)| Some((*rank, u32::try_from(of.rank).ok()?)));
        let number = match GlobalRanks::of(n_ranks, &of_job.collect()) {
            Err(why) => {
                self.refused.push(format!("communicator {} is left out: {why}", key.comm_name()));
                None
            }
            Ok(GlobalRanks { ranks, inferred }) => {
                self.members += ranks.len();
                if self.members > MAX_MEMBERS {
                    bail!("the communicators have more than {MAX_MEMBERS} ranks");
                }
                self.totals.inferred += u64::from(inferred);
                let is_derived = |rank: u32| known.get(&rank).is_some_and(|rank| rank.is_derived);
                let derived = (0..n_ranks).filter(|rank| is_derived(*rank));
                let derived = derived.filter_map(|rank| ranks.get(rank as usize).copied());
                self.derived.extend(derived.filter_map(|rank| i64::try_from(rank).ok()));
                let id = self.groups.len() as u64;
                let desc = self.comm_names.get(&comm_hash_name(key.hash));
                let process_group = ProcessGroup {
                    pg_id: Some(id),
                    name: key.comm_name().into(),
                    description: desc.map_or("undefined", String::as_str).into(),
                    ranks,
                    status: None,
                };
                let places = Places::of(&process_group);
                self.groups.push(CommGroup { process_group, places, from: 0, until: u64::MAX });
                u32::try_from(id).ok()
            }
        };
        self.group_numbers.insert((hash, key.instance), number);
        Ok(number)
    }

    /// Returns the rank of a communicator, as it is known in this source.
    pub(super) fn comm_rank(&mut self, key: RankKey, n_ranks: i32) -> Result<&mut CommRank> {
        let group = self.group(key, n_ranks)?;
        let refusal = format_args!("there are more than {MAX_RANKS} ranks of communicators");
        get_or_make(&mut self.comm_ranks, key, MAX_RANKS, refusal, |_| {
            let ranks = group.and_then(|group| self.groups.get(group as usize));
            let place = usize::try_from(key.rank).ok();
            let job_rank = ranks.zip(place).and_then(|(group, rank)| group.process_group.ranks.get(rank));
            let job_rank = job_rank.and_then(|rank| i64::try_from(*rank).ok());
            Ok(CommRank {
                group: group.filter(|_| job_rank.is_some()),
                of_job: job_rank.unwrap_or(-1),
                numbers: CallNumbers::default(),
                seen: BTreeSet::new(),
            })
        })
    }
}
