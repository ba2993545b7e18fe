//! Rows that are written and read: one type for each kind of line, used by writers, readers and the tables of
//! docs/OUTPUT.md.
//!
//! Each column says how its value is known and in which unit it is. Files of older versions can be read: keys
//! that were added later have a default.

#[macro_use]
mod column;

mod api_call;
mod cell;
mod clock;
mod communicator;
mod fleet;
mod gpu;
mod launch_thread;
mod link;
mod losses;
mod message;
pub(crate) mod named;
mod observed;
mod op;
mod stack;
mod text_number;

pub use api_call::{ApiCall, ApiCallRow, OtherCallRow, Pointer};
pub use cell::{Cell, CellType, Cells, Row};
pub use clock::ClockReport;
pub use column::{Column, ValueKind};
pub use communicator::{
    CommunicatorReport, HostInfo, NicRow, RankKey, comm_hash_name, comm_hash_of_name, device_label,
};
pub use fleet::{FleetColumns, FleetComm, FleetHost, FleetMessage, LinkSecond, SecondOf};
pub use gpu::{GpuProcessRow, GpuRow};
pub use launch_thread::LaunchThreadRow;
pub use link::{LinkKey, LinkRow, OpTimes, OpTimesRow, WaitRow};
pub use losses::{CpuReport, Gap, LossReport};
pub use message::{BytesKind, MessageRow, MessageSums, Stage, Wait, WaitTimes};
pub use observed::Observed;
pub use op::{LaunchKind, Op, OpRow, Outcome, PeerRow};
pub use stack::{FrameRow, PythonFrame, StackId, StackOf, StackRow, is_of_a_library};
