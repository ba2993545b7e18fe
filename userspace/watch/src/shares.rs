//! Shares of tenants in what watching takes. Pure.

use std::{collections::HashMap, time::Duration};

use inspect::process::Tenant;

/// Time of one reading after which no further process of the tenant is read. Memory that does not answer
/// takes seconds, and then is put off; a usual process takes a millisecond.
const TIME_OF_TENANT: Duration = Duration::from_secs(1);

/// Time that each tenant has taken of one reading.
#[derive(Debug, Default)]
pub(crate) struct TimeShares(HashMap<Option<Tenant>, Duration>);

impl TimeShares {
    pub(crate) fn has_time(&self, tenant: Option<&Tenant>) -> bool {
        self.0.get(&tenant.cloned()).is_none_or(|taken| *taken < TIME_OF_TENANT)
    }

    pub(crate) fn add(&mut self, tenant: Option<&Tenant>, taken: Duration) {
        *self.0.entry(tenant.cloned()).or_default() += taken;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_whose_process_does_not_answer_takes_no_time_of_another() {
        let [ann, bob] = ["ann", "bob"].map(|name| Tenant::User(1000, name.to_owned()));
        let mut shares = TimeShares::default();
        let usual = Duration::from_millis(1);
        for _ in 0..512 {
            assert!(shares.has_time(Some(&ann)));
            shares.add(Some(&ann), usual);
        }
        // One that is asked and does not answer, and none after it.
        shares.add(Some(&ann), Duration::from_secs(5));
        assert!(!shares.has_time(Some(&ann)) && shares.has_time(Some(&bob)) && shares.has_time(None));
    }
}
