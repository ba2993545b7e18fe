//! A tool's answer, judged.

use std::collections::BTreeSet;

use serde_json::Value;

/// How right an answer is, from worst to best.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Verdict {
    /// It points at processes, and not at the one that is to blame.
    Wrong,
    /// It points at nobody.
    Silent,
    /// It points at the one that is to blame, and at others.
    Among,
    Right,
}

impl Verdict {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Wrong => "wrong",
            Self::Silent => "silent",
            Self::Among => "among others",
            Self::Right => "right",
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Answer {
    /// Processes that it points at.
    pub(super) pids: BTreeSet<u32>,
    /// What it says, in short.
    pub(super) said: String,
}

impl Answer {
    pub(super) fn judge(&self, culprit: u32) -> Verdict {
        match (self.pids.contains(&culprit), self.pids.len()) {
            (true, 1) => Verdict::Right,
            (true, _) => Verdict::Among,
            (false, 0) => Verdict::Silent,
            (false, _) => Verdict::Wrong,
        }
    }

    /// The processes of the ranks that are waited for in the communicators at which the waiting ends: in a circle, in
    /// all of them.
    pub(super) fn of_dump(dump: &Value) -> Self {
        let job = &dump["job"];
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let ends = list(&job["communicators"]);
        let all = list(&dump["communicators"]);
        let mut pids = BTreeSet::new();
        for communicator in all.iter().filter(|one| ends.contains(&one["commHash"])) {
            let ranks = list(&communicator["ranks"]);
            for culprit in list(&communicator["verdict"]["culprits"]) {
                let read = ranks.iter().find(|rank| rank["rank"] == culprit);
                // One that was not read has its process in the others' tables.
                let absent = ranks.iter().flat_map(|rank| list(&rank["absent"]));
                let absent = absent.filter(|absent| absent["rank"] == culprit);
                let absent = absent.map(|absent| match &absent["pid"] {
                    Value::Null => absent["peer"]["pid"].clone(),
                    pid => pid.clone(),
                });
                let pid =
                    read.map(|rank| rank["pid"].clone()).or_else(|| absent.into_iter().find(Value::is_u64));
                pids.extend(pid.as_ref().and_then(Value::as_u64).and_then(|pid| u32::try_from(pid).ok()));
            }
        }
        let said = job["sentence"].as_str().unwrap_or("no communicator was found").to_owned();
        Self { pids, said }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_answer_is_right_if_it_points_at_the_culprit_alone() {
        let judged =
            |pids: &[u32]| Answer { pids: pids.iter().copied().collect(), said: String::new() }.judge(7);
        assert_eq!(
            [&[7][..], &[7, 8], &[], &[8]].map(judged),
            [Verdict::Right, Verdict::Among, Verdict::Silent, Verdict::Wrong]
        );
        assert!(
            Verdict::Right > Verdict::Among
                && Verdict::Among > Verdict::Silent
                && Verdict::Silent > Verdict::Wrong
        );
    }

    #[test]
    fn a_dump_points_at_the_culprits_of_the_communicators_that_it_names_first() {
        let rank = |rank: u32, pid: u32| json!({ "rank": rank, "pid": pid, "absent": [{ "rank": 2, "peer": { "pid": 9 } }] });
        let communicator = |hash: &str, culprits: &[u32]| json!({ "commHash": hash, "ranks": [rank(0, 5), rank(1, 6)], "verdict": { "culprits": culprits } });
        let dump = |first: &str| {
            json!({
                "job": { "sentence": "stuck: …", "communicators": [first] },
                "communicators": [communicator("a", &[1]), communicator("b", &[2])],
            })
        };
        assert_eq!(Answer::of_dump(&dump("a")).pids, [6].into());
        assert_eq!(Answer::of_dump(&dump("b")).pids, [9].into());
        let mut circle = dump("a");
        circle["job"]["communicators"] = json!(["a", "b"]);
        assert_eq!(Answer::of_dump(&circle).pids, [6, 9].into());
        assert_eq!(Answer::of_dump(&json!({ "job": null, "communicators": [] })).pids, [].into());
    }
}
