//! What ncclflow itself does not see: an alert that begins once and ends once. Pure.

use std::{collections::BTreeMap, time::Duration};

/// Time for which something is not seen before that is an alert.
const AFTER: Duration = Duration::from_secs(10);
/// Time for which all is seen again before the alert ends.
const MENDED_AFTER: Duration = Duration::from_mins(1);
/// Time after which a reason that does not come again is none any more.
const LASTS: Duration = Duration::from_secs(8);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum BlindChange {
    /// It begins, for these reasons.
    Begins(String),
    /// It ends, after so long.
    Ends(Duration),
}

/// A reason: when it was seen first, and last, and a sentence.
#[derive(Debug)]
struct Reason {
    first: Duration,
    last: Duration,
    sentence: String,
}

#[derive(Debug, Default)]
pub(crate) struct Blindness {
    reasons: BTreeMap<&'static str, Reason>,
    begun: Option<Duration>,
    mended: Option<Duration>,
}

impl Blindness {
    /// Takes note that something is not seen. `subject` tells it apart from others.
    pub(crate) fn note(&mut self, subject: &'static str, sentence: String, now: Duration) {
        let reason =
            self.reasons.entry(subject).or_insert(Reason { first: now, last: now, sentence: String::new() });
        (reason.last, reason.sentence) = (now, sentence);
    }

    /// Judges what was noted until now.
    pub(crate) fn judge(&mut self, now: Duration) -> Option<BlindChange> {
        self.reasons.retain(|_, reason| now.saturating_sub(reason.last) <= LASTS);
        let Some(begun) = self.begun else {
            let is_due = |reason: &Reason| reason.last.saturating_sub(reason.first) >= AFTER;
            if !self.reasons.values().any(is_due) {
                return None;
            }
            (self.begun, self.mended) = (Some(now), None);
            let sentences = self.reasons.values().map(|reason| &reason.sentence);
            return Some(BlindChange::Begins(flow::text::joined(sentences, "; ")));
        };
        if !self.reasons.is_empty() {
            self.mended = None;
            return None;
        }
        let mended = *self.mended.get_or_insert(now);
        (now.saturating_sub(mended) >= MENDED_AFTER).then(|| {
            self.begun = None;
            BlindChange::Ends(now.saturating_sub(begun))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lasts_begins_once_and_ends_once_and_a_moment_is_nothing() {
        let mut blind = Blindness::default();
        let mut told = Vec::new();
        for second in 0..400 {
            let now = Duration::from_secs(second);
            if second < 5 || (100..150).contains(&second) || (180..190).contains(&second) {
                blind.note("gpus", "the driver does not answer".to_owned(), now);
            }
            // Seldom, and again and again.
            if (100..150).contains(&second) && second % 5 == 0 {
                blind.note("late", "readings are late".to_owned(), now);
            }
            told.extend(blind.judge(now).map(|change| (second, change)));
        }
        let begins = BlindChange::Begins("the driver does not answer; readings are late".to_owned());
        let [(begun, first), (ended, second)] = &told[..] else { panic!("{told:?}") };
        assert_eq!((begun, first), (&110, &begins));
        assert!(
            (250..=260).contains(ended) && *second == BlindChange::Ends(Duration::from_secs(ended - 110)),
            "{told:?}"
        );
    }
}
