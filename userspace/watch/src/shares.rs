//! Shares of tenants in the places of processes that are watched. Pure.

use std::collections::{BTreeSet, HashMap};

use inspect::process::Tenant;

/// Returns the processes that have no place, as there are more than `places`: of the tenant that has most, the
/// last ones. A process stands behind those that go after it.
pub(crate) fn without_place(
    processes: impl Iterator<Item = (Option<Tenant>, u32)>,
    places: usize,
) -> BTreeSet<u32> {
    let mut by_tenant: HashMap<Option<Tenant>, Vec<u32>> = HashMap::new();
    let mut left = 0_usize;
    for (tenant, pid) in processes {
        by_tenant.entry(tenant).or_default().push(pid);
        left += 1;
    }
    let mut without = BTreeSet::new();
    while left > places
        && let Some(last) = by_tenant.values_mut().max_by_key(|pids| pids.len()).and_then(Vec::pop)
    {
        without.insert(last);
        left -= 1;
    }
    without
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::*;

    #[test]
    fn the_tenant_that_has_most_places_gives_up_the_last() {
        let of = |name: &str, pids: Range<u32>| {
            let tenant = Tenant::User(1000, name.to_owned());
            pids.map(move |pid| (Some(tenant.clone()), pid))
        };
        assert!(without_place(of("ann", 0..4096), 4096).is_empty(), "one alone has all");
        let without = without_place(of("ann", 0..4096).chain(of("bob", 5000..5008)), 4096);
        assert_eq!(without, (4088..4096).collect());
        // Further ones of who has most come to nothing, and so do many of each.
        let further = of("ann", 0..4096).chain(of("ann", 9000..9100)).chain(of("bob", 5000..5001));
        assert_eq!(without_place(further, 4096), (9000..9100).chain([4095]).collect());
        let without = without_place(of("ann", 0..4096).chain(of("bob", 5000..9096)), 4096);
        assert_eq!(without, (2048..4096).chain(7048..9096).collect());
    }
}
