//! CUDA graphs: what is captured of streams, and its replays. A graph's nodes run in the order in which they were
//! captured, all on the stream that it is launched on.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::launch::{self, Launch};
use super::stream::{self, StreamHandle};
use super::{INVALID_VALUE, SUCCESS, Status, entry, lock, put};

type HostFn = extern "C" fn(*mut c_void);

#[derive(Clone)]
pub(crate) enum Node {
    Kernel(Launch),
    Host(HostFn, usize),
}

/// `cudaUserObject_t`: a function that is called when no graph and no executable refers to it any more.
struct UserObject(HostFn, usize);

impl Drop for UserObject {
    fn drop(&mut self) {
        (self.0)(self.1 as *mut c_void);
    }
}

/// What a graph holds, or an executable of it.
#[derive(Clone, Default)]
struct Content {
    nodes: Vec<Node>,
    objects: Vec<Arc<UserObject>>,
}

/// `cudaGraph_t`, and `CUgraph`.
#[derive(Default)]
pub(crate) struct Graph {
    /// Number of the capture.
    id: u64,
    is_capturing: AtomicBool,
    content: Mutex<Content>,
}

impl Graph {
    pub(crate) fn is_capturing(&self) -> bool {
        self.is_capturing.load(Ordering::Acquire)
    }

    pub(crate) fn add(&self, node: Node) {
        lock(&self.content).nodes.push(node);
    }
}

/// Graphs that capture, by the handles of their streams.
static CAPTURING: Mutex<BTreeMap<usize, Arc<Graph>>> = Mutex::new(BTreeMap::new());

/// Captures what a stream is given until [`end_capture`].
extern "C" fn begin_capture(handle: StreamHandle, _mode: usize, _: usize) -> Status {
    static CAPTURES: AtomicU64 = AtomicU64::new(0);
    let id = CAPTURES.fetch_add(1, Ordering::Relaxed) + 1;
    let graph = Arc::new(Graph { id, is_capturing: AtomicBool::new(true), content: Mutex::default() });
    stream::from_handle(handle).join(&graph);
    lock(&CAPTURING).insert(handle as usize, graph);
    SUCCESS
}

/// Ends a capture, and gives the graph's handle.
unsafe extern "C" fn end_capture(handle: StreamHandle, place: *mut usize, _: usize) -> Status {
    let Some(graph) = lock(&CAPTURING).remove(&(handle as usize)) else { return INVALID_VALUE };
    graph.is_capturing.store(false, Ordering::Release);
    // SAFETY: the caller's pointer.
    unsafe { put(place, Arc::into_raw(graph) as usize) };
    SUCCESS
}

/// The functions of CUDA's driver behind the double's exports, in the order of its table.
pub(crate) fn of_driver() -> [usize; 7] {
    [
        instantiate as *const () as usize,
        launch_exec as *const () as usize,
        update as *const () as usize,
        destroy_exec as *const () as usize,
        destroy_graph as *const () as usize,
        begin_capture as *const () as usize,
        end_capture as *const () as usize,
    ]
}

unsafe extern "C" fn instantiate(place: *mut usize, graph: *const Graph, _flags: usize) -> Status {
    if graph.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: the handle came from `end_capture`, and the graph is not destroyed yet.
    let content = lock(unsafe { &(*graph).content }).clone();
    // SAFETY: the caller's pointer.
    unsafe { put(place, Box::into_raw(Box::new(Mutex::new(content))) as usize) };
    SUCCESS
}

extern "C" fn launch_exec(exec: *const Mutex<Content>, handle: StreamHandle, _: usize) -> Status {
    // SAFETY: the handle came from `instantiate`, and the executable is not destroyed yet.
    let content = lock(unsafe { &*exec }).clone();
    let stream = stream::from_handle(handle);
    for node in content.nodes {
        match node {
            Node::Kernel(kernel) => launch::submit(kernel, &stream),
            Node::Host(function, argument) => {
                stream.submit(Box::new(move || function(argument as *mut c_void)));
            }
        }
    }
    SUCCESS
}

/// `CUgraphExecUpdateResultInfo` begins with the result; 1 is `CU_GRAPH_EXEC_UPDATE_ERROR`, of a graph with another
/// number of nodes.
unsafe extern "C" fn update(exec: *const Mutex<Content>, graph: *const Graph, result: *mut c_int) -> Status {
    const UPDATE_FAILURE: Status = 910;
    // SAFETY: handles that are in use.
    let (mut content, new) = unsafe { (lock(&*exec), lock(&(*graph).content)) };
    let fits = content.nodes.len() == new.nodes.len();
    if fits {
        *content = new.clone();
    }
    // SAFETY: the caller's pointer.
    unsafe { put(result, c_int::from(!fits)) };
    if fits { SUCCESS } else { UPDATE_FAILURE }
}

extern "C" fn destroy_exec(exec: *mut Mutex<Content>, _: usize, _: usize) -> Status {
    // SAFETY: the handle came from `instantiate`, and the caller must not use it again.
    drop(unsafe { Box::from_raw(exec) });
    SUCCESS
}

extern "C" fn destroy_graph(graph: *const Graph, _: usize, _: usize) -> Status {
    // SAFETY: the handle came from `end_capture`, and the caller must not use it again.
    drop(unsafe { Arc::from_raw(graph) });
    SUCCESS
}

pub(super) fn functions() -> Vec<(&'static str, usize)> {
    vec![
        entry!("cudaStreamIsCapturing", is_capturing),
        entry!("cudaStreamGetCaptureInfo", get_capture_info),
        entry!("cudaStreamGetCaptureInfo_v2", get_capture_info_v2),
        entry!("cudaStreamGetCaptureInfo_v3", get_capture_info_v3),
        entry!("cudaThreadExchangeStreamCaptureMode", succeed),
        entry!("cudaStreamUpdateCaptureDependencies", succeed),
        entry!("cudaStreamUpdateCaptureDependencies_v2", succeed),
        entry!("cudaGraphAddDependencies", succeed),
        entry!("cudaGraphAddDependencies_v2", succeed),
        entry!("cudaGraphAddEventRecordNode", add_node),
        entry!("cudaGraphAddEventWaitNode", add_node),
        entry!("cudaGraphAddHostNode", add_host_node),
        entry!("cudaUserObjectCreate", create_user_object),
        entry!("cudaGraphRetainUserObject", retain_user_object),
    ]
}

/// A graph's order is that of the capture, so it needs no dependencies.
extern "C" fn succeed() -> Status {
    SUCCESS
}

unsafe extern "C" fn is_capturing(handle: StreamHandle, status: *mut c_int) -> Status {
    let is_capturing = stream::from_handle(handle).capturing().is_some();
    // SAFETY: the caller's pointer.
    unsafe { put(status, c_int::from(is_capturing)) };
    SUCCESS
}

unsafe extern "C" fn get_capture_info(handle: StreamHandle, status: *mut c_int, id: *mut u64) -> Status {
    let graph = stream::from_handle(handle).capturing();
    // SAFETY: the caller's pointers.
    unsafe {
        put(status, c_int::from(graph.is_some()));
        if let Some(graph) = graph {
            put(id, graph.id);
        }
    }
    SUCCESS
}

/// `cudaGraphNode_t`s of which nothing depends.
static NODES: [usize; 1] = [1];

unsafe extern "C" fn get_capture_info_v2(
    handle: StreamHandle,
    status: *mut c_int,
    id: *mut u64,
    graph: *mut *const Graph,
    nodes: *mut *const usize,
    count: *mut usize,
) -> Status {
    let capturing = stream::from_handle(handle).capturing();
    // SAFETY: the caller's pointers.
    unsafe {
        get_capture_info(handle, status, id);
        if let Some(capturing) = capturing {
            put(graph, Arc::as_ptr(&capturing));
            put(nodes, NODES.as_ptr());
            put(count, NODES.len());
        }
    }
    SUCCESS
}

unsafe extern "C" fn get_capture_info_v3(
    handle: StreamHandle,
    status: *mut c_int,
    id: *mut u64,
    graph: *mut *const Graph,
    nodes: *mut *const usize,
    edges: *mut *const c_void,
    count: *mut usize,
) -> Status {
    // SAFETY: the caller's pointers.
    unsafe {
        put(edges, std::ptr::null());
        get_capture_info_v2(handle, status, id, graph, nodes, count)
    }
}

unsafe extern "C" fn add_node(node: *mut usize) -> Status {
    // SAFETY: the caller's pointer.
    unsafe { put(node, NODES[0]) };
    SUCCESS
}

/// `cudaHostNodeParams`
#[repr(C)]
struct HostNode {
    function: HostFn,
    argument: *mut c_void,
}

unsafe extern "C" fn add_host_node(
    node: *mut usize,
    graph: *const Graph,
    _dependencies: *const usize,
    _count: usize,
    host: *const HostNode,
) -> Status {
    // SAFETY: the caller's pointers; the graph is one that captures.
    unsafe {
        put(node, NODES[0]);
        (*graph).add(Node::Host((*host).function, (*host).argument as usize));
    }
    SUCCESS
}

unsafe extern "C" fn create_user_object(
    place: *mut *const UserObject,
    argument: *mut c_void,
    function: HostFn,
    _references: c_uint,
    _flags: c_uint,
) -> Status {
    let object = Arc::new(UserObject(function, argument as usize));
    // SAFETY: the caller's pointer.
    unsafe { put(place, Arc::into_raw(object)) };
    SUCCESS
}

/// NCCL always gives its reference away (`cudaGraphUserObjectMove`).
unsafe extern "C" fn retain_user_object(graph: *const Graph, object: *const UserObject) -> Status {
    // SAFETY: the graph is one that captures; the object came from `create_user_object`.
    unsafe { lock(&(*graph).content).objects.push(Arc::from_raw(object)) };
    SUCCESS
}
