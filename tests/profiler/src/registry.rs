//! The contexts of this process, found by the number in a handle.

use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};

use crate::context::{Communicator, Context};
use crate::handle::Handle;

/// Where the files go. Nothing is recorded without it.
const DIRECTORY: &str = "NCCLFLOW_TRUTH_DIR";

#[derive(Default)]
struct Registry {
    /// Context n is at index n − 1. Contexts live as long as the library: NCCL may mention an event after
    /// finalize.
    contexts: Vec<Arc<Context>>,
    /// The context of ops that other processes asked this one to do.
    foreign: Option<Handle>,
}

static REGISTRY: RwLock<Registry> = RwLock::new(Registry { contexts: Vec::new(), foreign: None });

/// Makes a context for a communicator, if recording is asked for.
pub(crate) fn open(api: u32, communicator: Option<Communicator>) -> Option<Handle> {
    let directory = PathBuf::from(std::env::var_os(DIRECTORY)?);
    let mut registry = REGISTRY.write().unwrap_or_else(PoisonError::into_inner);
    registry.add(|handle| Context::new(handle, api, directory, communicator))
}

pub(crate) fn context_of(handle: Handle) -> Option<Arc<Context>> {
    let registry = REGISTRY.read().unwrap_or_else(PoisonError::into_inner);
    let index = usize::try_from(handle.context().checked_sub(1)?).ok()?;
    registry.contexts.get(index).map(Arc::clone)
}

/// The context of ops that came from other processes. Exists only where some communicator of this process
/// records.
pub(crate) fn foreign() -> Option<Arc<Context>> {
    let mut registry = REGISTRY.write().unwrap_or_else(PoisonError::into_inner);
    let handle = if let Some(handle) = registry.foreign {
        handle
    } else {
        let model = Arc::clone(registry.contexts.first()?);
        let handle = registry.add(|handle| model.for_foreign_ops(handle))?;
        registry.foreign = Some(handle);
        handle
    };
    drop(registry);
    context_of(handle)
}

impl Registry {
    fn add(&mut self, make: impl FnOnce(Handle) -> Context) -> Option<Handle> {
        let handle = Handle::of_context(self.contexts.len() as u64 + 1)?;
        self.contexts.push(Arc::new(make(handle)));
        Some(handle)
    }
}
