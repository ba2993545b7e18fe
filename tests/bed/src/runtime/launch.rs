//! Kernel launches, through the runtime and through the driver.
//!
//! A kernel's arguments are copied at the launch, as CUDA does. The emulator does the rest.

use std::collections::HashMap;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use super::graph::Node;
use super::hidden_pages;
use super::stream::{self, Stream, StreamHandle};
use super::{INVALID_VALUE, SUCCESS, Status, entry, put};

/// What a kernel was launched with.
#[derive(Debug, Clone)]
pub(crate) struct Launch {
    pub(crate) kernel: String,
    /// One buffer with all arguments (NCCL ≥ 2.22), or the value of each argument's first word (before).
    pub(crate) arguments: Arguments,
    pub(crate) shape: LaunchShape,
}

/// What a kernel takes of a GPU.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LaunchShape {
    /// Blocks, each on a multiprocessor of its own, as NCCL's are.
    pub(crate) blocks: u32,
    /// Threads of each.
    pub(crate) threads: u32,
}

#[derive(Debug, Clone)]
pub(crate) enum Arguments {
    Buffer(Vec<u8>),
    Words(Vec<u64>),
}

/// Called on the launching thread. The job that it returns runs in the stream.
pub(crate) type Executor = Box<dyn Fn(Launch) -> stream::Job + Send + Sync>;

struct State {
    kernels: HashMap<usize, String>,
    executor: Executor,
}

static STATE: OnceLock<State> = OnceLock::new();

static LAUNCHES: AtomicU64 = AtomicU64::new(0);

/// Kernels launched so far in this process.
pub(crate) fn count() -> u64 {
    LAUNCHES.load(Ordering::Relaxed)
}

/// Sets the kernels' names by address, and the executor.
pub(crate) fn set_executor(kernels: HashMap<usize, String>, executor: Executor) {
    // A second call would be a mistake of this program; the first one stays.
    let _already_set = STATE.set(State { kernels, executor });
}

pub(super) fn functions() -> Vec<(&'static str, usize)> {
    vec![
        entry!("cudaFuncGetAttributes", func_get_attributes),
        entry!("cudaFuncSetAttribute", func_set_attribute),
        entry!("cudaGetFuncBySymbol", get_func_by_symbol),
        entry!("cudaLaunchKernel", launch_kernel),
        entry!("cudaLaunchKernelExC", launch_kernel_exc),
    ]
}

fn start(function: usize, arguments: Arguments, shape: LaunchShape, stream: StreamHandle) -> Status {
    let Some(state) = STATE.get() else { return INVALID_VALUE };
    let Some(kernel) = state.kernels.get(&function) else {
        crate::say(&format!("launch of an unknown kernel at {function:#x}"));
        return INVALID_VALUE;
    };
    let launch = Launch { kernel: kernel.clone(), arguments, shape };
    let stream = stream::from_handle(stream);
    match stream.capturing() {
        Some(graph) => graph.add(Node::Kernel(launch)),
        None => submit(launch, &stream),
    }
    SUCCESS
}

/// Launches a kernel on a stream.
pub(super) fn submit(launch: Launch, stream: &Arc<Stream>) {
    let Some(state) = STATE.get() else { return };
    LAUNCHES.fetch_add(1, Ordering::Relaxed);
    stream.submit((state.executor)(launch));
}

/// `struct cudaFuncAttributes` up to the fields that NCCL reads.
#[repr(C)]
struct FuncAttributes {
    shared_size: usize,
    const_size: usize,
    local_size: usize,
    max_threads: c_int,
    registers: c_int,
    ptx_version: c_int,
    binary_version: c_int,
}

unsafe extern "C" fn func_get_attributes(place: *mut FuncAttributes, _function: *const c_void) -> Status {
    let answer = FuncAttributes {
        shared_size: 0,
        const_size: 0,
        local_size: 0,
        max_threads: 1024,
        registers: 96,
        ptx_version: 90,
        binary_version: 90,
    };
    // SAFETY: the caller's pointer.
    unsafe { put(place, answer) };
    SUCCESS
}

extern "C" fn func_set_attribute() -> Status {
    SUCCESS
}

unsafe extern "C" fn get_func_by_symbol(place: *mut *const c_void, symbol: *const c_void) -> Status {
    // SAFETY: the caller's pointer.
    unsafe { put(place, symbol) };
    SUCCESS
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Dim3 {
    x: c_uint,
    y: c_uint,
    z: c_uint,
}

/// NCCL's grids and blocks have one dimension.
fn shape_of(grid: Dim3, block: Dim3) -> LaunchShape {
    LaunchShape { blocks: grid.x, threads: block.x }
}

/// How many argument pointers of a kernel with separate arguments are read: NCCL's have one to three, and
/// the array has no end mark.
fn argument_count(kernel: &str) -> usize {
    // 2.22 and later take everything as one buffer, whose type is in the mangled name.
    if kernel.contains("ncclDevKernelArgsStorage") || kernel.contains("CaptureGpuTime") { 1 } else { 3 }
}

unsafe fn launch_with_pointers(
    function: usize,
    arguments: *const *const u64,
    shape: LaunchShape,
    stream: StreamHandle,
) -> Status {
    let Some(state) = STATE.get() else { return INVALID_VALUE };
    let count = state.kernels.get(&function).map_or(0, |kernel| argument_count(kernel));
    if arguments.is_null() {
        return INVALID_VALUE;
    }
    let words = (0..count)
        .map(|index| {
            // SAFETY: by CUDA's contract there is a pointer to each argument, and each of NCCL's is 8 bytes
            // or more.
            unsafe { arguments.add(index).read().read_unaligned() }
        })
        .collect();
    start(function, Arguments::Words(words), shape, stream)
}

unsafe extern "C" fn launch_kernel(
    function: *const c_void,
    grid: Dim3,
    block: Dim3,
    arguments: *const *const u64,
    _shared: usize,
    stream: StreamHandle,
) -> Status {
    // SAFETY: the caller's pointers.
    unsafe { launch_with_pointers(function as usize, arguments, shape_of(grid, block), stream) }
}

/// `cudaLaunchConfig_t`
#[repr(C)]
struct LaunchConfig {
    grid: Dim3,
    block: Dim3,
    shared: usize,
    stream: StreamHandle,
    attributes: *const c_void,
    attribute_count: c_uint,
}

unsafe extern "C" fn launch_kernel_exc(
    config: *const LaunchConfig,
    function: *const c_void,
    arguments: *const *const u64,
) -> Status {
    if config.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: not null, and the caller's; the rest as above.
    unsafe {
        let shape = shape_of((*config).grid, (*config).block);
        launch_with_pointers(function as usize, arguments, shape, (*config).stream)
    }
}

/// `CUlaunchConfig`
#[repr(C)]
pub(super) struct DriverLaunchConfig {
    grid: Dim3,
    block: Dim3,
    shared: c_uint,
    stream: StreamHandle,
}

pub(super) unsafe extern "C" fn cu_launch_kernel_ex(
    config: *const DriverLaunchConfig,
    function: *const c_void,
    arguments: *const *const u64,
    extra: *const *const c_void,
) -> Status {
    if config.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: not null, and the caller's; the rest as in `driver_launch`.
    unsafe {
        let shape = shape_of((*config).grid, (*config).block);
        driver_launch(function as usize, shape, (*config).stream, arguments, extra)
    }
}

pub(super) unsafe extern "C" fn cu_launch_kernel(
    function: *const c_void,
    grid_x: c_uint,
    _grid_y: c_uint,
    _grid_z: c_uint,
    block_x: c_uint,
    _block_y: c_uint,
    _block_z: c_uint,
    _shared: c_uint,
    stream: StreamHandle,
    arguments: *const *const u64,
    extra: *const *const c_void,
) -> Status {
    let shape = LaunchShape { blocks: grid_x, threads: block_x };
    // SAFETY: the caller's pointers.
    unsafe { driver_launch(function as usize, shape, stream, arguments, extra) }
}

unsafe fn driver_launch(
    function: usize,
    shape: LaunchShape,
    stream: StreamHandle,
    arguments: *const *const u64,
    extra: *const *const c_void,
) -> Status {
    // The markers of CUDA's documented `extra` list.
    const END: usize = 0;
    const BUFFER_POINTER: usize = 1;
    const BUFFER_SIZE: usize = 2;
    if extra.is_null() {
        // SAFETY: as in `launch_with_pointers`.
        return unsafe { launch_with_pointers(function, arguments, shape, stream) };
    }
    let (mut buffer, mut size) = (std::ptr::null::<u8>(), 0);
    for pair in 0..4 {
        // SAFETY: the list has a marker and a value per entry until its end marker.
        let marker = unsafe { extra.add(2 * pair).read() }.addr();
        if marker == END {
            break;
        }
        // SAFETY: as above.
        let value = unsafe { extra.add(2 * pair + 1).read() };
        match marker {
            BUFFER_POINTER => buffer = value.cast(),
            // SAFETY: this marker's value points to a size.
            BUFFER_SIZE => size = unsafe { value.cast::<usize>().read() },
            _ => return INVALID_VALUE,
        }
    }
    if buffer.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: the caller gave a buffer of this size.
    let bytes = unsafe { std::slice::from_raw_parts(buffer, size) }.to_vec();
    let launch = count();
    let status = start(function, Arguments::Buffer(bytes), shape, stream);
    hidden_pages::hide(launch, buffer, size);
    status
}
