//! Runs the programs that the end-to-end tests are about: the bed and ncclflow itself.

pub mod bed;
pub mod callers;
pub mod conformance;
pub mod disk;
pub mod dumper;
pub mod exported;
pub mod fuse;
pub mod hangs;
pub mod job;
pub mod kernel_objects;
pub mod memory;
pub mod node;
pub mod program_files;
pub mod programs;
pub mod progress;
pub mod recorder;
pub mod run_counts;
pub mod scrape;
pub mod stack_program;
pub mod stopped_thread;
pub mod stripped;
pub mod tables;
pub mod thread_sleeps;
pub mod top;
pub mod traced_run;
pub mod windowed;
