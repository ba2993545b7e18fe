//! The two protocols with flags between the data.

use super::executor::Control;
use super::memory;

/// How data and flags alternate.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Format {
    /// Data bytes before each flag.
    data: usize,
    /// Bytes of a flag.
    flag: usize,
    /// The slot is filled in units of this number of data bytes.
    unit: usize,
}

/// 4 bytes of data, 4 bytes of flag; both pairs of a 16-byte line are written.
pub(crate) const LL: Format = Format { data: 4, flag: 4, unit: 8 };
/// 120 bytes of data, 8 bytes of flag; 16 lines, what a warp moves, at a time.
pub(crate) const LL128: Format = Format { data: 120, flag: 8, unit: 1920 };

impl Format {
    pub(crate) fn wire_bytes(self, bytes: usize) -> usize {
        bytes.div_ceil(self.unit) * self.unit / self.data * (self.data + self.flag)
    }

    /// The flag of a step; LL keeps its low half.
    fn flag_of(self, step: u64) -> u64 {
        if self.flag == 4 { (step + 1) & 0xffff_ffff } else { step + 1 }
    }

    pub(crate) fn send(self, slot: usize, step: u64, data: &[u8]) {
        let mut padded = data.to_vec();
        padded.resize(data.len().div_ceil(self.unit) * self.unit, 0);
        for (index, part) in padded.chunks_exact(self.data).enumerate() {
            let place = slot + index * (self.data + self.flag);
            memory::copy(place, part.as_ptr() as usize, self.data);
            // The flag is written last, as the reader waits for it.
            if self.flag == 4 {
                memory::store_u32(place + self.data, self.flag_of(step) as u32);
            } else {
                memory::store(place + self.data, self.flag_of(step));
            }
        }
    }

    pub(crate) async fn receive(self, control: &Control, slot: usize, step: u64, bytes: usize) -> Vec<u8> {
        let mut data = Vec::new();
        let flag = self.flag_of(step);
        for index in 0..bytes.div_ceil(self.unit) * self.unit / self.data {
            let place = slot + index * (self.data + self.flag);
            let arrived = || {
                if self.flag == 4 {
                    u64::from(memory::load_u32(place + self.data)) == flag
                } else {
                    memory::load(place + self.data) == flag
                }
            };
            if !arrived() {
                control.until(arrived).await;
            }
            data.extend(memory::bytes(place, self.data));
        }
        data.truncate(bytes);
        data
    }
}
