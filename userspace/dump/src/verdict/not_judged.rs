//! Communicators about which nothing can be said, because something about their ranks was not read, or is not
//! there yet.

use super::{Case, Verdict, named};
use crate::RankReport;

pub(super) fn duplicate_rank(case: &Case<'_>) -> Option<Verdict> {
    let why = "a rank appears twice: two communicators have one hash (possible before 2.24), or one dump was \
               merged twice";
    (case.ranks.len() < case.reports.len()).then(|| Verdict::cannot_tell(why))
}

pub(super) fn read_once(case: &Case<'_>) -> Option<Verdict> {
    let readings = case.ranks.values().map(|rank| rank.motion.readings).min().unwrap_or(0);
    (readings < 2).then(|| Verdict::cannot_tell("it was read only once"))
}

/// Leaves the verdict open if no op in flight was seen, but some lists of ops could not be read.
pub(super) fn ops_unreadable(case: &Case<'_>) -> Option<Verdict> {
    let ranks = case.ranks_where(RankReport::has_unreadable_ops);
    let why = format!("the ops in flight of {} could not be read", named(&ranks));
    (!ranks.is_empty()).then(|| Verdict::cannot_tell(why))
}
