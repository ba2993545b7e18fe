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
mod host;
mod link;
mod losses;
mod message;
mod message_sums;
mod named;
mod observed;
mod op;
mod outcome;
mod python_frame;
mod stack;
mod stage;
mod wait;

pub use api_call::{ApiCall, ApiCallRow, OtherCallRow, Pointer};
pub use cell::{Cell, CellType, Cells, Row};
pub use clock::ClockReport;
pub use column::{Column, FLEET_TABLES, TABLES, ValueKind};
pub use communicator::{CommunicatorReport, RankKey, comm_hash_name, comm_hash_of_name};
pub use fleet::{FleetColumns, FleetComm, FleetHost, FleetMessage, LinkSecond, SecondOf};
pub use gpu::{GpuProcessRow, GpuRow};
pub use host::HostInfo;
pub use link::{LinkKey, LinkRow, OpTimes, OpTimesRow, WaitRow};
pub use losses::{CpuReport, Gap, LossReport};
pub use message::{BytesKind, MessageRow};
pub use message_sums::MessageSums;
pub use observed::Observed;
pub use op::{Op, OpRow, PeerRow};
pub use outcome::Outcome;
pub use python_frame::{PythonFrame, is_of_a_library};
pub use stack::{FrameRow, StackId, StackOf, StackRow};
pub use stage::Stage;
pub use wait::{Wait, WaitTimes};
