//! What was over a budget, and whose it was. Nothing that tenants do is without a bound; who goes beyond its share
//! loses its own, and is named here.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};

/// Processes and budgets that are named; more are counted.
const MAX_NAMED: usize = 256;

/// A budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Budget {
    /// The tenant's part of a ring buffer that was more than half full: how often it was refused room, for a record or
    /// for some that travel together.
    KernelBuffer,
    /// The process's part of the queue from the kernel to the recording, which was more than half full: records that
    /// were dropped.
    Queue,
    /// Memory for ops, calls and communicators that are not complete: how often what was open was given out as it
    /// was.
    Model,
    /// Mappings that were read: looks at the process that did not see all of them.
    Mappings,
    /// Files that were looked at, or their bytes: looks that were not finished, and were gone on with later.
    Files,
    /// Libraries that are traced at a time: such as were refused.
    Libraries,
    /// Numbers for probes: libraries that were refused, as the process's user had most of them.
    Cookies,
    /// Windows that flags in containers open: flags that had to wait, as others of the tenant had opened many.
    Windows,
    /// Room under `--max-size`: windows, or files of lines, that were removed although others' were older, as the
    /// tenant's took most.
    Disk,
    /// Descriptors: processes whose end is seen late, as the tenant has most of those that are followed.
    Descriptors,
    /// Files of lines: lines that are in none, as there are as many files as can be, and the process has most of them.
    LineFiles,
}

/// Who was over a budget.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Whose {
    /// In our PID namespace.
    Process(u32),
    /// A user, a pod or a container.
    Tenant(String),
}

/// What was over, by budget and process or tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OverBudget {
    named: BTreeMap<(Budget, Whose), Over>,
    /// Of budgets and processes that are not named.
    more: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Over {
    name: String,
    count: u64,
}

impl OverBudget {
    /// `name`: of the process, if it is known. `count`: what the budget says.
    pub fn add(&mut self, budget: Budget, whose: Whose, name: &str, count: u64) {
        let key = (budget, whose);
        if count == 0 {
            return;
        }
        if self.named.len() >= MAX_NAMED && !self.named.contains_key(&key) {
            self.more += count;
            return;
        }
        let over = self.named.entry(key).or_default();
        over.count += count;
        if over.name.is_empty() {
            name.clone_into(&mut over.name);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.named.is_empty()
    }
}

impl Serialize for OverBudget {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Entry<'a> {
            budget: Option<Budget>,
            #[serde(skip_serializing_if = "Option::is_none")]
            pid: Option<u32>,
            #[serde(skip_serializing_if = "Option::is_none")]
            tenant: Option<&'a str>,
            #[serde(skip_serializing_if = "str::is_empty")]
            name: &'a str,
            count: u64,
        }
        let named = self.named.iter().map(|((budget, whose), Over { name, count })| {
            let (pid, tenant) = match whose {
                Whose::Process(pid) => (Some(*pid), None),
                Whose::Tenant(tenant) => (None, Some(tenant.as_str())),
            };
            Entry { budget: Some(*budget), pid, tenant, name, count: *count }
        });
        let more = Entry { budget: None, pid: None, tenant: None, name: "", count: self.more };
        let more = (self.more > 0).then_some(more);
        serializer.collect_seq(named.chain(more))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_over_is_named_and_many_are_counted() {
        let mut over = OverBudget::default();
        over.add(Budget::Model, Whose::Process(7), "", 1);
        over.add(Budget::Model, Whose::Process(7), "python3", 2);
        over.add(Budget::Queue, Whose::Process(7), "python3", 0);
        over.add(Budget::KernelBuffer, Whose::Tenant("user ann (1000)".into()), "", 5);
        let text = serde_json::to_string(&over).unwrap();
        let tenant = r#"{"budget":"kernel_buffer","tenant":"user ann (1000)","count":5}"#;
        assert_eq!(text, format!(r#"[{tenant},{{"budget":"model","pid":7,"name":"python3","count":3}}]"#));
        for pid in 1000..101_000 {
            over.add(Budget::Files, Whose::Process(pid), "sh", 1);
        }
        let text = serde_json::to_string(&over).unwrap();
        assert!(text.len() < 20_000, "{} bytes", text.len());
        assert!(text.ends_with(r#"{"budget":null,"count":99746}]"#), "{}", &text[text.len() - 60..]);
    }
}
