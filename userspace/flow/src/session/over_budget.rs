//! Overruns of budgets, and whose they are. Everything that tenants do has a bound; whoever goes beyond its
//! share loses its own data, and is named here.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::lenient;

/// Most processes and budgets that are named; more are counted.
const MAX_NAMED: usize = 256;

/// A budget, and what is counted where it is exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Budget {
    /// The tenant's part of a ring buffer that was more than half full: how often it was refused room, for a
    /// record or for some that travel together.
    KernelBuffer,
    /// The process's part of the queue from the kernel to the recording, which was more than half full:
    /// records dropped.
    Queue,
    /// Memory for ops, calls and communicators that are not complete: how often open ones were given out as
    /// they were.
    Model,
    /// Mappings that were read: looks at the process that did not see all of them.
    Mappings,
    /// Files that were looked at, or their bytes: looks that were interrupted, and continued later.
    Files,
    /// Libraries traced at a time: libraries refused.
    Libraries,
    /// Numbers for probes: libraries refused, as the process's user had most of them.
    Cookies,
    /// Windows that flags in containers open: flags that had to wait, as the tenant's had opened many.
    Windows,
    /// Room under `--max-size`: windows, or line files, that were removed although others' were older, as the
    /// tenant's took most.
    Disk,
    /// Descriptors: processes whose end is seen late, as the tenant has most of the followed processes.
    Descriptors,
    /// Line files: lines without a file, as the limit of files is reached, and the process has most of them.
    LineFiles,
}

/// Process or tenant that was over a budget.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Whose {
    /// Number of a process in our PID namespace.
    Process(u32),
    /// A user, a pod or a container.
    Tenant(String),
}

/// Overruns by budget and process or tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OverBudget {
    named: BTreeMap<(Budget, Whose), Over>,
    /// Sum of those that are not named.
    more: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Over {
    name: String,
    count: u64,
}

impl OverBudget {
    /// Adds an overrun. `name`: the process's, if known. `count`: see [`Budget`].
    pub fn add(&mut self, budget: Budget, whose: Whose, name: &str, count: u64) {
        let key = (budget, whose);
        if count == 0 {
            return;
        }
        if self.named.len() >= MAX_NAMED && !self.named.contains_key(&key) {
            self.more = self.more.saturating_add(count);
            return;
        }
        let over = self.named.entry(key).or_default();
        over.count = over.count.saturating_add(count);
        if over.name.is_empty() {
            name.clone_into(&mut over.name);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.named.is_empty()
    }
}

/// An overrun, as it is written; without a budget the sum of those that are not named.
#[derive(Serialize, Deserialize)]
struct Entry {
    budget: Option<Budget>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tenant: Option<String>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    name: String,
    count: u64,
}

impl Serialize for OverBudget {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let named = self.named.iter().map(|((budget, whose), Over { name, count })| {
            let (pid, tenant) = match whose {
                Whose::Process(pid) => (Some(*pid), None),
                Whose::Tenant(tenant) => (None, Some(tenant.clone())),
            };
            Entry { budget: Some(*budget), pid, tenant, name: name.clone(), count: *count }
        });
        let more = Entry { budget: None, pid: None, tenant: None, name: String::new(), count: self.more };
        let more = (self.more > 0).then_some(more);
        serializer.collect_seq(named.chain(more))
    }
}

impl<'de> Deserialize<'de> for OverBudget {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let mut over = Self::default();
        for Entry { budget, pid, tenant, name, count } in lenient::list::<_, _, Vec<_>>(from)? {
            let whose = pid.map(Whose::Process).or(tenant.map(Whose::Tenant));
            match budget.zip(whose) {
                Some((budget, whose)) => over.add(budget, whose, &name, count),
                None => over.more = over.more.saturating_add(count),
            }
        }
        Ok(over)
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
