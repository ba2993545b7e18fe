//! Messages of a report, limited in number and length.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::lenient;

/// Most messages that are kept; a tenant can cause as many as it likes.
const MAX_MESSAGES: usize = 500;

/// Most bytes of a message: paths have up to 4,096.
const MAX_BYTES: usize = 2048;

/// Messages in their order: the first are kept, and the others counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Messages {
    kept: Vec<String>,
    more: u64,
}

impl Messages {
    pub fn push(&mut self, mut message: String) {
        if self.kept.len() >= MAX_MESSAGES {
            self.more += 1;
            return;
        }
        if message.len() > MAX_BYTES {
            message.truncate(message.floor_char_boundary(MAX_BYTES));
            message.push('…');
        }
        self.kept.push(message);
    }

    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// Returns the number of messages until now.
    pub fn count(&self) -> u64 {
        self.kept.len() as u64 + self.more
    }

    /// Drops the first `count` messages.
    #[must_use]
    pub fn without_first(mut self, count: u64) -> Self {
        let kept = usize::try_from(count).unwrap_or(usize::MAX).min(self.kept.len());
        self.kept.drain(..kept);
        self.more = self.more.saturating_sub(count.saturating_sub(kept as u64));
        self
    }

    /// Returns the messages for display: the last says how many more there were.
    pub fn shown(&self) -> impl Iterator<Item = String> {
        let more = (self.more > 0).then(|| format!("and {} more", self.more));
        self.kept.iter().cloned().chain(more)
    }
}

impl Serialize for Messages {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.shown())
    }
}

impl<'de> Deserialize<'de> for Messages {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let mut messages = Self::default();
        lenient::list::<_, String, Vec<_>>(from)?.into_iter().for_each(|message| messages.push(message));
        Ok(messages)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_without_end_is_counted_and_what_is_long_is_cut() {
        let mut messages = Messages::default();
        messages.push("ä".repeat(5000));
        for number in 0..100_000 {
            messages.push(format!("message {number}"));
        }
        let text = serde_json::to_string(&messages).unwrap();
        assert!(text.len() < 16_000, "{} bytes", text.len());
        let rest = messages.clone().without_first(499);
        assert_eq!((messages.count(), rest.count(), rest.kept.len()), (100_001, 99_502, 1));
        assert_eq!(messages.clone().without_first(99_999).count(), 2);
        assert!(messages.clone().without_first(1 << 40).is_empty());
        assert!(text.ends_with(r#""message 498","and 99501 more"]"#), "{}", &text[text.len() - 60..]);
    }
}
