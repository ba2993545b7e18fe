//! A double of `libcuda.so.1`: the exported functions of CUDA graphs, which hand everything to whoever has set them.
//! They are in a library of their own because probes are set on its exports.

use std::ffi::c_int;
use std::mem::transmute;
use std::sync::atomic::{AtomicUsize, Ordering};

/// `CUDA_ERROR_NOT_INITIALIZED`
const NOT_INITIALIZED: c_int = 3;

/// What the functions do, in the order of [`ncclflow_double_set`]'s table.
static DOES: [AtomicUsize; 7] = [const { AtomicUsize::new(0) }; 7];

type Does = extern "C" fn(usize, usize, usize) -> c_int;

fn go(which: usize, arguments: [usize; 3]) -> c_int {
    let does = DOES[which].load(Ordering::Acquire);
    if does == 0 {
        return NOT_INITIALIZED;
    }
    // SAFETY: set by `ncclflow_double_set`, which asks for functions of this type.
    let does = unsafe { transmute::<usize, Does>(does) };
    let [first, second, third] = arguments;
    does(first, second, third)
}

/// Sets what instantiate, launch, update, destroying an executable and destroying a graph do, and beginning and
/// ending a capture, in this order.
///
/// # Safety
/// `table` has seven functions that take three words.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclflow_double_set(table: *const usize) {
    for (at, does) in DOES.iter().enumerate() {
        // SAFETY: by this function's contract.
        does.store(unsafe { table.add(at).read() }, Ordering::Release);
    }
}

macro_rules! functions {
    ($($name:ident = $which:literal;)*) => {
        $(
            /// CUDA's function of this name.
            #[unsafe(no_mangle)]
            pub extern "C" fn $name(first: usize, second: usize, third: usize) -> c_int {
                go($which, [first, second, third])
            }
        )*
    };
}

functions! {
    cuGraphInstantiateWithFlags = 0;
    cuGraphLaunch = 1;
    cuGraphExecUpdate_v2 = 2;
    cuGraphExecDestroy = 3;
    cuGraphDestroy = 4;
    cuStreamBeginCapture_v2 = 5;
    cuStreamEndCapture = 6;
}
