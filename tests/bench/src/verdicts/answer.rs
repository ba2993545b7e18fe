//! What `check --json` answers, in the form that is compared.

use std::collections::BTreeSet;

use serde_json::Value;

/// Kinds of verdicts that name somebody.
const ACCUSATIONS: [&str; 4] = ["gpu", "host", "stage", "link"];

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Answer {
    pub(super) kind: String,
    pub(super) ranks: BTreeSet<i64>,
    /// The other end of a link.
    pub(super) peer: Option<i64>,
    pub(super) percent: Option<f64>,
    pub(super) confidence: Option<f64>,
    /// Kinds and ranks of further causes that are faults, too.
    pub(super) others: Vec<(String, BTreeSet<i64>)>,
    /// Kinds and ranks that notes name.
    pub(super) notes: Vec<(String, BTreeSet<i64>)>,
}

/// Whether a cause of this kind names somebody.
pub(super) fn accuses(kind: &str) -> bool {
    ACCUSATIONS.contains(&kind)
}

impl Answer {
    /// Reads the verdict `slow`; where there is none, the rank that waits lead to.
    pub(super) fn read(check: &Value) -> Self {
        check.get("slow").map_or_else(|| Self::of_waits(check), Self::of_slow)
    }

    fn of_slow(slow: &Value) -> Self {
        let ranks = |cause: &Value| {
            cause["ranks"].as_array().into_iter().flatten().filter_map(Value::as_i64).collect()
        };
        let named = |is_note: bool| {
            let others = slow["others"].as_array().into_iter().flatten();
            let named = others.filter(|other| (other["isNote"] == true) == is_note);
            named.map(|other| (other["kind"].as_str().unwrap_or_default().to_owned(), ranks(other))).collect()
        };
        Self {
            kind: slow["kind"].as_str().unwrap_or("unknown").to_owned(),
            ranks: ranks(slow),
            peer: slow["peer"].as_i64(),
            percent: slow["percent"].as_f64(),
            confidence: slow["confidence"].as_f64(),
            others: named(false),
            notes: named(true),
        }
    }

    fn of_waits(check: &Value) -> Self {
        let communicators = check["communicators"].as_array().into_iter().flatten();
        let culprits = communicators.map(|one| &one["verdict"]["culprit"]).filter(|one| one.is_object());
        let worst = culprits.max_by_key(|one| one["waited_ns"].as_u64());
        let kind = worst.map_or("nobody", |worst| match worst["reason"].as_str() {
            Some("own_gpu") => "gpu",
            Some("late") => "host",
            Some("link") => "link",
            _ => "unknown",
        });
        Self {
            kind: kind.to_owned(),
            ranks: worst.and_then(|worst| worst["rank"].as_i64()).into_iter().collect(),
            peer: worst.and_then(|worst| worst["peer"].as_i64()),
            percent: None,
            confidence: None,
            others: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Whether somebody is named as the one that makes the job slow.
    pub(super) fn accuses(&self) -> bool {
        accuses(&self.kind)
    }

    /// The answer in a few words.
    pub(super) fn words(&self) -> String {
        let ranks: Vec<String> = self.ranks.iter().map(ToString::to_string).collect();
        let peer = self.peer.map(|peer| format!("→{peer}")).unwrap_or_default();
        let percent = self.percent.map(|percent| format!(" {percent:.1} %")).unwrap_or_default();
        let others: Vec<&str> = self.others.iter().map(|(kind, _)| kind.as_str()).collect();
        let also = if others.is_empty() { String::new() } else { format!(", also {}", others.join(", ")) };
        format!("{} {}{peer}{percent}{also}", self.kind, ranks.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_verdict_goes_before_waits() {
        let waits = json!([{ "verdict": { "culprit": null } },
            { "verdict": { "culprit": { "rank": 1, "reason": "late", "waited_ns": 5 } } },
            { "verdict": { "culprit": { "rank": 3, "peer": 0, "reason": "link", "waited_ns": 50 } } }]);
        let answer = Answer::read(&json!({ "communicators": waits }));
        assert_eq!((answer.words().as_str(), answer.accuses()), ("link 3→0", true));
        let slow = json!({ "kind": "gpu", "ranks": [2], "percent": 7.06, "confidence": 0.97 });
        let answer = Answer::read(&json!({ "communicators": waits, "slow": slow }));
        assert_eq!((answer.words().as_str(), answer.accuses()), ("gpu 2 7.1 %", true));
        let note = json!({ "kind": "gpu", "ranks": [1], "isNote": true });
        let fault = json!({ "kind": "host", "ranks": [3] });
        let slow = json!({ "kind": "nobody", "ranks": [], "others": [note, fault] });
        let answer = Answer::read(&json!({ "slow": slow }));
        assert_eq!(answer.notes, [("gpu".to_owned(), BTreeSet::from([1]))]);
        assert_eq!(answer.others, [("host".to_owned(), BTreeSet::from([3]))]);
        assert!(!answer.accuses());
        for nothing in [json!({}), json!({ "slow": {} }), json!({ "slow": { "kind": "all", "ranks": [] } })] {
            assert!(!Answer::read(&nothing).accuses(), "{nothing}");
        }
    }
}
