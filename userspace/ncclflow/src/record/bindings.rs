//! What the records of each cookie mean. Under `--all` libraries come while others are recorded.

use std::sync::{Arc, Mutex, PoisonError};

use crate::capture::Binding;

/// Bindings by cookie, between the thread that attaches and the one that decodes. A cookie's binding is there
/// before its probe is.
#[derive(Clone, Debug, Default)]
pub(super) struct SharedBindings(Arc<Mutex<Vec<Binding>>>);

impl SharedBindings {
    /// The next cookie's.
    pub(super) fn push(&self, binding: Binding) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(binding);
    }

    /// Adds to `known` what has come since.
    pub(super) fn update(&self, known: &mut Vec<Binding>) {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.extend(all.iter().skip(known.len()).cloned());
    }
}
