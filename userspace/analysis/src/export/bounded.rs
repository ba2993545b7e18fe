//! Maps with a limit: tenants decide how many ranks and processes a recording has.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    fmt::Arguments,
};

use anyhow::{Result, bail};

/// Returns the value of a key, which is made if it is new. Fails with `refusal` if there would be more than
/// `most`.
pub(super) fn get_or_make<'m, K: Ord, V>(
    map: &'m mut BTreeMap<K, V>,
    key: K,
    most: usize,
    refusal: Arguments<'_>,
    make: impl FnOnce(&K) -> Result<V>,
) -> Result<&'m mut V> {
    let is_full = map.len() >= most;
    match map.entry(key) {
        Entry::Occupied(known) => Ok(known.into_mut()),
        Entry::Vacant(_) if is_full => bail!("{refusal}"),
        Entry::Vacant(new) => {
            let value = make(new.key())?;
            Ok(new.insert(value))
        }
    }
}
