//! Streams. Each has a queue of jobs and a thread that runs them in order. The thread starts with
//! the first job that may take long (a kernel, a wait, a host function). Short jobs on an idle
//! stream run at once in the caller.

use std::collections::VecDeque;
use std::ffi::{c_int, c_uint, c_void};
use std::ptr;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use super::event::{self, EventHandle};
use super::graph::{Graph, Node};
use super::{INVALID_VALUE, NOT_READY, SUCCESS, Status, entry, lock, put};

pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// `cudaStream_t`: null and two small numbers are the default streams, all others come from
/// [`Stream::into_handle`].
pub(crate) type StreamHandle = *mut c_void;

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    submitted: u64,
    completed: u64,
    has_worker: bool,
    closed: bool,
}

#[derive(Default)]
pub(crate) struct Stream {
    queue: Mutex<Queue>,
    changed: Condvar,
    /// Graph that captures what the stream is given.
    capture: Mutex<Option<Weak<Graph>>>,
}

impl Stream {
    /// Adds a job that may wait for others.
    pub(crate) fn submit(self: &Arc<Self>, job: Job) {
        let mut queue = lock(&self.queue);
        queue.submitted += 1;
        queue.jobs.push_back(job);
        if !queue.has_worker {
            queue.has_worker = true;
            let stream = Arc::clone(self);
            let worker = thread::Builder::new().name("bed stream".to_owned()).spawn(move || stream.work());
            if let Err(error) = worker {
                crate::say(&format!("cannot start a stream's thread: {error}"));
            }
        }
        drop(queue);
        self.changed.notify_all();
    }

    /// Adds a job that waits for nothing: on an idle stream it runs at once.
    pub(crate) fn submit_short(self: &Arc<Self>, job: Job) {
        let mut queue = lock(&self.queue);
        if queue.submitted == queue.completed {
            queue.submitted += 1;
            job();
            queue.completed += 1;
            return;
        }
        drop(queue);
        self.submit(job);
    }

    /// The number of jobs so far; [`Stream::reached`] it when all of them are done.
    pub(crate) fn mark(&self) -> u64 {
        lock(&self.queue).submitted
    }

    pub(crate) fn reached(&self, mark: u64) -> bool {
        lock(&self.queue).completed >= mark
    }

    /// Waits until `mark` is reached; false when `deadline` passed first.
    pub(crate) fn wait(&self, mark: u64, deadline: Option<Instant>) -> bool {
        let mut queue = lock(&self.queue);
        while queue.completed < mark {
            let patience = match deadline {
                None => Duration::from_hours(1),
                Some(deadline) => match deadline.checked_duration_since(Instant::now()) {
                    None => return false,
                    Some(left) => left,
                },
            };
            queue = self.changed.wait_timeout(queue, patience).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    fn work(&self) {
        loop {
            let mut queue = lock(&self.queue);
            let job = loop {
                if let Some(job) = queue.jobs.pop_front() {
                    break job;
                }
                if queue.closed {
                    return;
                }
                queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
            };
            drop(queue);
            job();
            lock(&self.queue).completed += 1;
            self.changed.notify_all();
        }
    }

    /// Has a graph capture what the stream is given.
    pub(super) fn join(&self, graph: &Arc<Graph>) {
        *lock(&self.capture) = Some(Arc::downgrade(graph));
    }

    /// The graph that captures what the stream is given.
    pub(crate) fn capturing(&self) -> Option<Arc<Graph>> {
        lock(&self.capture).as_ref()?.upgrade().filter(|graph| graph.is_capturing())
    }

    /// Lets the thread end once the queue is empty.
    fn close(&self) {
        lock(&self.queue).closed = true;
        self.changed.notify_all();
    }

    pub(crate) fn into_handle(self: Arc<Self>) -> StreamHandle {
        Arc::into_raw(self).cast_mut().cast()
    }
}

/// The stream behind a handle.
pub(crate) fn from_handle(handle: StreamHandle) -> Arc<Stream> {
    static DEFAULT: OnceLock<Arc<Stream>> = OnceLock::new();
    // Null, `cudaStreamLegacy` and `cudaStreamPerThread`.
    if handle.addr() <= 2 {
        return Arc::clone(DEFAULT.get_or_init(Arc::default));
    }
    let stream: *const Stream = handle.cast_const().cast();
    // SAFETY: the handle came from `into_handle` and its stream is not destroyed yet, so one count is still
    // held.
    unsafe {
        Arc::increment_strong_count(stream);
        Arc::from_raw(stream)
    }
}

pub(super) fn functions() -> Vec<(&'static str, usize)> {
    vec![
        entry!("cudaStreamCreate", create),
        entry!("cudaStreamCreateWithFlags", create_with_flags),
        entry!("cudaStreamCreateWithPriority", create_with_priority),
        entry!("cudaStreamDestroy", destroy),
        entry!("cudaStreamSynchronize", synchronize),
        entry!("cudaStreamQuery", query),
        entry!("cudaStreamWaitEvent", wait_event),
        entry!("cudaStreamGetId", get_id),
        entry!("cudaLaunchHostFunc", launch_host_func),
        entry!("cudaDeviceSynchronize", device_synchronize),
    ]
}

unsafe fn create_into(place: *mut StreamHandle) -> Status {
    if place.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: not null, and the caller's.
    unsafe { put(place, Arc::new(Stream::default()).into_handle()) };
    SUCCESS
}

unsafe extern "C" fn create(place: *mut StreamHandle) -> Status {
    // SAFETY: the caller's pointer.
    unsafe { create_into(place) }
}

unsafe extern "C" fn create_with_flags(place: *mut StreamHandle, _flags: c_uint) -> Status {
    // SAFETY: the caller's pointer.
    unsafe { create_into(place) }
}

unsafe extern "C" fn create_with_priority(
    place: *mut StreamHandle,
    _flags: c_uint,
    _priority: c_int,
) -> Status {
    // SAFETY: the caller's pointer.
    unsafe { create_into(place) }
}

unsafe extern "C" fn destroy(handle: StreamHandle) -> Status {
    if handle.addr() <= 2 {
        return INVALID_VALUE;
    }
    from_handle(handle).close();
    // SAFETY: gives up the count that `into_handle` left in the handle, which the caller must not use again.
    unsafe { Arc::decrement_strong_count(handle.cast_const().cast::<Stream>()) };
    SUCCESS
}

extern "C" fn synchronize(handle: StreamHandle) -> Status {
    let stream = from_handle(handle);
    stream.wait(stream.mark(), None);
    SUCCESS
}

extern "C" fn query(handle: StreamHandle) -> Status {
    let stream = from_handle(handle);
    if stream.reached(stream.mark()) { SUCCESS } else { NOT_READY }
}

extern "C" fn device_synchronize() -> Status {
    // NCCL calls it where only its own default stream has work.
    synchronize(ptr::null_mut())
}

extern "C" fn wait_event(handle: StreamHandle, event: EventHandle, _flags: c_uint) -> Status {
    let stream = from_handle(handle);
    if let Some(graph) = event::captured(event) {
        stream.join(&graph);
        return SUCCESS;
    }
    // What a graph waits for outside of it is done long before it is launched.
    if stream.capturing().is_some() {
        return SUCCESS;
    }
    if let Some((other, mark)) = event::recorded(event)
        && !other.reached(mark)
    {
        // A stream is always behind its own jobs.
        if !Arc::ptr_eq(&stream, &other) {
            stream.submit(Box::new(move || {
                other.wait(mark, None);
            }));
        }
    }
    SUCCESS
}

unsafe extern "C" fn get_id(handle: StreamHandle, id: *mut u64) -> Status {
    // SAFETY: the caller's pointer.
    unsafe { put(id, handle.addr() as u64) };
    SUCCESS
}

extern "C" fn launch_host_func(
    handle: StreamHandle,
    function: extern "C" fn(*mut c_void),
    argument: *mut c_void,
) -> Status {
    let (stream, argument) = (from_handle(handle), argument as usize);
    if let Some(graph) = stream.capturing() {
        graph.add(Node::Host(function, argument));
        return SUCCESS;
    }
    stream.submit(Box::new(move || function(argument as *mut c_void)));
    SUCCESS
}
