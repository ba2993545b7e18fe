//! Places of the rows of ranks that come from several sources.
//!
//! A rank of a communicator can come twice: from two windows of one session, from recordings of two
//! processes, from one host recorded twice. Windows of one process follow each other and go on in the same
//! place. Any other source of the rank gets a number, as a second communicator of one hash has it, and is
//! reported: nothing is mixed, left out or written over.

use std::collections::HashMap;

use flow::schema::RankKey;
use serde::Serialize;

use crate::sources::Source;

/// A rank that two sources have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TwiceReport {
    pub communicator: String,
    pub rank: i32,
    /// Host of the second source.
    pub host: String,
    pub pid: u32,
    /// Name that the second source gets instead of `communicator`.
    pub instead: String,
}

/// Place of the rows of a rank of the present source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Number among the communicators with this hash and rank.
    pub(super) instance: u32,
    /// Number to add to the numbers of sends and receives: windows begin anew.
    pub(super) p2p_shift: u64,
    /// Set if an earlier window had the rank: counted values begin anew.
    pub(super) is_continued: bool,
}

#[derive(Debug)]
struct Taken {
    instance: u32,
    host: String,
    pid: u32,
    /// Number in its own source.
    own_instance: u32,
    source: usize,
    /// Wall time at which the source ends.
    end_ns: u64,
    /// Number of the next send or receive.
    next_p2p: u64,
}

#[derive(Debug, Default)]
pub(super) struct Ranks {
    taken: HashMap<(Option<u64>, i32), Vec<Taken>>,
    source: usize,
    host: String,
    span_ns: (u64, u64),
    places: HashMap<RankKey, Place>,
    pub(super) twice: Vec<TwiceReport>,
}

/// Most ranks that come twice and are listed.
const MAX_TWICE: usize = 1000;

impl Ranks {
    /// Begins this source.
    pub(super) fn begin(&mut self, source: &Source) {
        self.source += 1;
        source.host().clone_into(&mut self.host);
        self.span_ns = source.wall_span_ns().unwrap_or_default();
        self.places.clear();
    }

    /// Returns the place of the rows of this rank.
    pub(super) fn place(&mut self, key: RankKey) -> Place {
        if let Some(place) = self.places.get(&key) {
            return *place;
        }
        let Self { source, host, span_ns: (begin_ns, end_ns), .. } = self;
        let taken = self.taken.entry((key.hash, key.rank)).or_default();
        let earlier = taken.iter_mut().find(|taken| {
            // Without a hash, or with several communicators of one, it is not known which was which.
            key.hash.is_some()
                && (taken.own_instance, key.instance) == (0, 0)
                && (taken.host.as_str(), taken.pid) == (host.as_str(), key.pid)
                && taken.source != *source
                && taken.end_ns <= *begin_ns
        });
        let place = if let Some(earlier) = earlier {
            (earlier.source, earlier.end_ns) = (*source, *end_ns);
            Place { instance: earlier.instance, p2p_shift: earlier.next_p2p, is_continued: true }
        } else {
            let is_taken = |instance: u32| taken.iter().any(|taken| taken.instance == instance);
            let instance = (key.instance..u32::MAX).find(|instance| !is_taken(*instance)).unwrap_or(u32::MAX);
            let is_twice = taken.iter().any(|taken| taken.source != *source);
            if is_twice && self.twice.len() < MAX_TWICE {
                self.twice.push(TwiceReport {
                    communicator: key.comm_name(),
                    rank: key.rank,
                    host: host.clone(),
                    pid: key.pid,
                    instead: RankKey { instance, ..key }.comm_name(),
                });
            }
            let (host, pid, own_instance) = (host.clone(), key.pid, key.instance);
            let (source, end_ns) = (*source, *end_ns);
            taken.push(Taken { instance, host, pid, own_instance, source, end_ns, next_p2p: 0 });
            Place { instance, p2p_shift: 0, is_continued: false }
        };
        self.places.insert(key, place);
        place
    }

    /// Notes the number of a send or receive, shifted already.
    pub(super) fn note_p2p(&mut self, key: RankKey, instance: u32, number: u64) {
        let taken = self.taken.get_mut(&(key.hash, key.rank)).into_iter().flatten();
        for taken in taken.filter(|taken| taken.instance == instance) {
            taken.next_p2p = taken.next_p2p.max(number.saturating_add(1));
        }
    }
}
