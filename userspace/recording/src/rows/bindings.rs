//! Bindings of a session that goes on: some threads add them, others read them.

use std::sync::{Arc, Mutex, PoisonError};

use flow::recording::Binding;

/// Meaning of each cookie's records. The thread that attaches adds to it, and the one that decodes looks. A
/// cookie and its binding have the same number: the binding is there before the probe is attached, and there
/// is none without a cookie.
#[derive(Clone, Debug, Default)]
pub struct SharedBindings(Arc<Mutex<Vec<Binding>>>);

impl SharedBindings {
    /// Adds the next cookie's binding.
    pub fn push(&self, binding: Binding) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(binding);
    }

    /// Adds the bindings that `known` lacks.
    pub fn update(&self, known: &mut Vec<Binding>) {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.extend(all.iter().skip(known.len()).cloned());
    }

    pub fn list(&self) -> Vec<Binding> {
        let mut all = Vec::new();
        self.update(&mut all);
        all
    }
}
