//! Judges communicators without ops in flight of which some ranks launched fewer collectives than others.

use super::{
    Kind, State, Verdict,
    case::{Case, MAX_SENTENCES},
};

pub(super) fn not_joined(case: &Case<'_>) -> Option<Verdict> {
    let (behind, most) = case.behind();
    if behind.is_empty() {
        return None;
    }
    let mut verdict = Verdict::new(State::Stuck, format!("nothing moved for {:.1} s", case.seconds));
    let sentences = behind.iter().take(MAX_SENTENCES).map(|rank| case.not_joined_sentence(*rank, most));
    verdict.evidence.extend(sentences);
    case.add_stopped(&mut verdict);
    verdict.victims = case.ranks_where(|rank| !behind.contains(&rank.rank));
    verdict.culprits = behind;
    verdict.kind = Some(Kind::NotJoined);
    verdict.evidence.extend(case.gpu_sentences());
    Some(verdict)
}
