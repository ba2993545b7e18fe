//! Judges communicators without ops in flight of which some ranks launched fewer collectives than others.

use super::{Case, Kind, MAX_SENTENCES, Verdict};

pub(super) fn not_joined(case: &Case<'_>) -> Option<Verdict> {
    let (behind, most) = case.behind();
    if behind.is_empty() {
        return None;
    }
    let mut evidence = vec![format!("nothing moved for {:.1} s", case.seconds)];
    let sentences = behind.iter().take(MAX_SENTENCES).map(|rank| case.not_joined_sentence(*rank, most));
    evidence.extend(sentences);
    let mut verdict = case.stuck(Kind::NotJoined, behind, evidence);
    case.add_halted(&mut verdict);
    verdict.evidence.extend(case.gpu_sentences());
    Some(verdict)
}
