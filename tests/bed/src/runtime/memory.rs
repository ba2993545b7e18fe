//! All memory is zeroed anonymous memory of this process; copies are `memmove`.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_void};
use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;
use std::ptr;
use std::sync::{Mutex, OnceLock};

use super::stream::{self, StreamHandle};
use super::{INVALID_VALUE, OUT_OF_MEMORY, SUCCESS, Status, device, entry, lock, put};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Host = 1,
    Device = 2,
}

#[derive(Debug, Clone, Copy)]
struct Block {
    size: usize,
    kind: Kind,
    device: c_int,
    /// False for memory that was only registered.
    owned: bool,
}

/// Every allocation, by its address.
static BLOCKS: Mutex<BTreeMap<usize, Block>> = Mutex::new(BTreeMap::new());

/// Where NCCL's allocations are noted.
static NOTES: OnceLock<File> = OnceLock::new();

/// NCCL looks up allocation ranges at this granularity.
const ALIGNMENT: usize = 4096;

/// CUDA carves small host allocations out of chunks that stay mapped when they are freed, and the profiler
/// thread of NCCL 2.32 still looks into one after its communicator is gone.
const STAYS_MAPPED: usize = 2 << 20;

pub(super) fn functions() -> Vec<(&'static str, usize)> {
    vec![
        entry!("cudaMalloc", malloc),
        entry!("cudaFree", free),
        entry!("cudaHostAlloc", host_alloc),
        entry!("cudaMallocHost", malloc_host),
        entry!("cudaFreeHost", free),
        entry!("cudaHostRegister", host_register),
        entry!("cudaHostUnregister", host_unregister),
        entry!("cudaHostGetDevicePointer", host_get_device_pointer),
        entry!("cudaMallocAsync", malloc_async),
        entry!("cudaFreeAsync", free_async),
        entry!("cudaMallocFromPoolAsync", malloc_from_pool_async),
        entry!("cudaMemPoolCreate", mem_pool_create),
        entry!("cudaMemPoolDestroy", succeed),
        entry!("cudaMemPoolSetAttribute", succeed),
        entry!("cudaMemcpy", memcpy),
        entry!("cudaMemcpyAsync", memcpy_async),
        entry!("cudaMemset", memset),
        entry!("cudaMemsetAsync", memset_async),
        entry!("cudaMemGetInfo", mem_get_info),
        entry!("cudaPointerGetAttributes", pointer_get_attributes),
    ]
}

/// Notes from now on what NCCL allocates and frees in `PATH.PID`: `host 4096`, `device -65536`.
pub(crate) fn note_in(path: &Path) -> io::Result<()> {
    let file = File::create(format!("{}.{}", path.display(), std::process::id()))?;
    NOTES.set(file).map_err(|_| io::Error::other("allocations are noted already"))
}

fn note(kind: Kind, sign: &str, size: usize) {
    if let Some(mut file) = NOTES.get() {
        let kind = if kind == Kind::Host { "host" } else { "device" };
        // A test that reads it sees what is missing.
        let _ = file.write_all(format!("{kind} {sign}{size}\n").as_bytes());
    }
}

extern "C" fn succeed() -> Status {
    SUCCESS
}

fn allocate(size: usize, kind: Kind) -> Option<usize> {
    let length = size.max(1).next_multiple_of(ALIGNMENT);
    // SAFETY: a fresh anonymous mapping, which touches no existing memory.
    let address = unsafe {
        libc::mmap(
            ptr::null_mut(),
            length,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if address == libc::MAP_FAILED {
        return None;
    }
    let block = Block { size: length, kind, device: device::current(), owned: true };
    lock(&BLOCKS).insert(address as usize, block);
    Some(address as usize)
}

/// Device memory for the bed's own buffers.
pub(crate) fn allocate_device(size: usize) -> Option<usize> {
    allocate(size, Kind::Device)
}

/// Gives back what [`allocate_device`] or NCCL's calls gave.
pub(crate) fn release(address: usize) -> bool {
    let block = lock(&BLOCKS).remove(&address);
    if let Some(block) = block.filter(|block| block.owned) {
        note(block.kind, "-", block.size);
    }
    match block {
        Some(block) if block.owned && block.size <= STAYS_MAPPED && block.kind == Kind::Host => {
            // SAFETY: as below; the pages go, their addresses stay and read as zero.
            unsafe { libc::madvise(address as *mut c_void, block.size, libc::MADV_DONTNEED) == 0 }
        }
        Some(block) if block.owned => {
            // SAFETY: the mapping was made by `allocate` with this length and is in no table any more.
            unsafe { libc::munmap(address as *mut c_void, block.size) == 0 }
        }
        _ => false,
    }
}

unsafe fn allocate_into(place: *mut *mut c_void, size: usize, kind: Kind) -> Status {
    if place.is_null() {
        return INVALID_VALUE;
    }
    let Some(address) = allocate(size, kind) else { return OUT_OF_MEMORY };
    note(kind, "", size.max(1).next_multiple_of(ALIGNMENT));
    // SAFETY: not null, and the caller's.
    unsafe { put(place, address as *mut c_void) };
    SUCCESS
}

unsafe extern "C" fn malloc(place: *mut *mut c_void, size: usize) -> Status {
    // SAFETY: the caller's pointer.
    unsafe { allocate_into(place, size, Kind::Device) }
}

unsafe extern "C" fn host_alloc(place: *mut *mut c_void, size: usize, _flags: c_uint) -> Status {
    // SAFETY: the caller's pointer.
    unsafe { allocate_into(place, size, Kind::Host) }
}

unsafe extern "C" fn malloc_host(place: *mut *mut c_void, size: usize) -> Status {
    // SAFETY: the caller's pointer.
    unsafe { allocate_into(place, size, Kind::Host) }
}

unsafe extern "C" fn malloc_async(place: *mut *mut c_void, size: usize, _stream: StreamHandle) -> Status {
    // SAFETY: the caller's pointer.
    unsafe { allocate_into(place, size, Kind::Device) }
}

unsafe extern "C" fn malloc_from_pool_async(
    place: *mut *mut c_void,
    size: usize,
    _pool: *mut c_void,
    _stream: StreamHandle,
) -> Status {
    // SAFETY: the caller's pointer.
    unsafe { allocate_into(place, size, Kind::Device) }
}

extern "C" fn free(address: *mut c_void) -> Status {
    if address.is_null() || release(address as usize) { SUCCESS } else { INVALID_VALUE }
}

extern "C" fn free_async(address: *mut c_void, stream: StreamHandle) -> Status {
    let address = address as usize;
    stream::from_handle(stream).submit_short(Box::new(move || {
        release(address);
    }));
    SUCCESS
}

unsafe extern "C" fn mem_pool_create(pool: *mut *mut c_void, _properties: *const c_void) -> Status {
    // A pool has no state here; any pointer that is not null will do.
    // SAFETY: the caller's pointer.
    unsafe { put(pool, ptr::without_provenance_mut(1)) };
    SUCCESS
}

extern "C" fn host_register(address: *mut c_void, size: usize, _flags: c_uint) -> Status {
    let block = Block { size, kind: Kind::Host, device: device::current(), owned: false };
    lock(&BLOCKS).insert(address as usize, block);
    SUCCESS
}

extern "C" fn host_unregister(address: *mut c_void) -> Status {
    lock(&BLOCKS).remove(&(address as usize));
    SUCCESS
}

unsafe extern "C" fn host_get_device_pointer(
    place: *mut *mut c_void,
    address: *mut c_void,
    _flags: c_uint,
) -> Status {
    // SAFETY: the caller's pointer.
    unsafe { put(place, address) };
    SUCCESS
}

unsafe fn copy(to: usize, from: usize, size: usize) {
    // SAFETY: the caller of the CUDA function vouches for both ranges; they may overlap.
    unsafe { ptr::copy(from as *const u8, to as *mut u8, size) };
}

unsafe extern "C" fn memcpy(to: *mut c_void, from: *const c_void, size: usize, _kind: c_int) -> Status {
    // SAFETY: the caller's ranges.
    unsafe { copy(to as usize, from as usize, size) };
    SUCCESS
}

unsafe extern "C" fn memcpy_async(
    to: *mut c_void,
    from: *const c_void,
    size: usize,
    _kind: c_int,
    stream: StreamHandle,
) -> Status {
    let (to, from) = (to as usize, from as usize);
    stream::from_handle(stream).submit_short(Box::new(move || {
        // SAFETY: the caller's ranges, which CUDA wants valid until the stream gets here.
        unsafe { copy(to, from, size) };
    }));
    SUCCESS
}

fn fill(to: usize, value: c_int, size: usize) {
    // SAFETY: the caller of the CUDA function vouches for the range.
    unsafe { ptr::write_bytes(to as *mut u8, value.to_le_bytes()[0], size) };
}

extern "C" fn memset(to: *mut c_void, value: c_int, size: usize) -> Status {
    fill(to as usize, value, size);
    SUCCESS
}

extern "C" fn memset_async(to: *mut c_void, value: c_int, size: usize, stream: StreamHandle) -> Status {
    let to = to as usize;
    stream::from_handle(stream).submit_short(Box::new(move || fill(to, value, size)));
    SUCCESS
}

unsafe extern "C" fn mem_get_info(free: *mut usize, total: *mut usize) -> Status {
    // SAFETY: the caller's pointers.
    unsafe {
        put(free, 64 << 30);
        put(total, 80 << 30);
    }
    SUCCESS
}

/// `struct cudaPointerAttributes` up to the fields that both CUDA 12 and 13 have.
#[repr(C)]
struct PointerAttributes {
    kind: c_int,
    device: c_int,
    device_pointer: *const c_void,
    host_pointer: *const c_void,
}

unsafe extern "C" fn pointer_get_attributes(place: *mut PointerAttributes, address: *const c_void) -> Status {
    let blocks = lock(&BLOCKS);
    let block = blocks
        .range(..=address as usize)
        .next_back()
        .filter(|(start, block)| address as usize - **start < block.size)
        .map(|(_, block)| *block);
    let answer = match block {
        None => PointerAttributes { kind: 0, device: -2, device_pointer: ptr::null(), host_pointer: address },
        Some(block) => PointerAttributes {
            kind: block.kind as c_int,
            device: block.device,
            device_pointer: address,
            host_pointer: if block.kind == Kind::Host { address } else { ptr::null() },
        },
    };
    // SAFETY: the caller's pointer.
    unsafe { put(place, answer) };
    SUCCESS
}
