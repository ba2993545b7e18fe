//! A program that does nothing. The loader attaches it once, while it loads the other object: the kernel is
//! slow to make the first uprobe of a while.
#![no_std]
#![no_main]

use aya_ebpf::{macros::uprobe, programs::ProbeContext};

#[uprobe(multi)]
pub fn idle(_: ProbeContext) -> u32 {
    0
}

#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
