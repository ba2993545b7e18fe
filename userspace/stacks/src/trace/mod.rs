//! Call stacks behind kernels, out of the trace of a profiler: Kineto's or Chrome's JSON, or Perfetto's
//! protobuf.
//!
//! [`file`] opens a trace and knows its format; [`json`] and [`perfetto`] read it as a stream and tell its
//! slices and flows ([`event`]), in the order of the file, to one of two consumers: [`functions`] finds the
//! slices of a function, one of which can be the window; [`collect`] keeps what can matter in the window, and
//! then goes from each kernel to the slice that launched it, and from there, by [`nesting`], to its callers.
//!
//! Times are in ns, on the trace's own clock. Memory is bounded by what is in the window, and by the kernels
//! that are asked for; a slice takes 24 bytes, and each name is kept once.

mod collect;
mod device;
mod event;
mod file;
mod functions;
mod json;
mod names;
mod nesting;
mod open_slices;
mod perfetto;
mod window;

pub use collect::{Found, Query, stacks_of};
pub use device::{DeviceTrace, DeviceWork, about, device_work, unix_offset};
pub use event::About;
pub use file::{Progress, TraceFile};
pub use functions::{Functions, Match, find_functions};
pub use names::Pattern;
pub use perfetto::messages as perfetto_messages;
pub use window::Window;
