//! Beginnings and ends of functions, from `.eh_frame`: the unwinder needs it, so stripping leaves it.

use std::collections::HashMap;

use gimli::{
    BaseAddresses, CallFrameInstruction, CieOrFde, EhFrame, EndianSlice, FrameDescriptionEntry, LittleEndian,
    UnwindSection as _,
};

use super::FoundFunction;
use crate::elf::{Budget, ElfVaddr, Error, Image};
use crate::symbols::FoundBy;

/// Largest `.eh_frame` that is read. The official libraries have at most 0.5 MB; frameworks with NCCL inside
/// have some tens.
const MAX_SECTION: u64 = 128 << 20;
/// Most frames that are kept; NCCL 2.32.3 has 8 thousand.
const MAX_FRAMES: usize = 2_000_000;

type Slice<'d> = EndianSlice<'d, LittleEndian>;

/// The machine code of one function, or of a part that the compiler put elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Frame {
    pub(super) start: u64,
    pub(super) end: u64,
    /// True if the code begins with the frame that a call leaves. A `.cold` part begins with a frame that the
    /// function has built already.
    pub(super) is_entry: bool,
}

impl Frame {
    pub(super) fn function(self, found_by: FoundBy) -> FoundFunction {
        FoundFunction { address: ElfVaddr(self.start), found_by, size: self.end - self.start }
    }
}

/// All frames of a library, by address.
#[derive(Debug, Default)]
pub(super) struct Frames(Vec<Frame>);

impl Frames {
    /// Reads all frames; none if the library has no `.eh_frame`. A damaged entry ends the list.
    pub(super) fn read(image: &Image, budget: &mut Budget) -> Result<Self, Error> {
        let Some(section) = image.section(".eh_frame").filter(|section| section.size > 0) else {
            return Ok(Self::default());
        };
        let data = image.section_data(section, MAX_SECTION, budget)?;
        let text = image.section(".text").map_or(0, |text| text.address.0);
        let bases = BaseAddresses::default().set_eh_frame(section.address.0).set_text(text);
        let eh_frame = EhFrame::new(&data, LittleEndian);
        let mut common = HashMap::new();
        let mut frames = Vec::new();
        let mut entries = eh_frame.entries(&bases);
        while let Ok(Some(entry)) = entries.next() {
            budget.take_entries(1, ".eh_frame")?;
            let partial = match entry {
                CieOrFde::Cie(cie) => {
                    common.insert(cie.offset(), cie);
                    continue;
                }
                CieOrFde::Fde(partial) => partial,
            };
            // Only CIEs that were seen on the way: parsing them anew for each FDE would let a hostile file
            // cause any amount of work.
            let parsed =
                partial.parse(|_, _, offset| common.get(&offset.0).cloned().ok_or(gimli::Error::NotCieId(0)));
            let Ok(fde) = parsed else { continue };
            if let Some(end) = fde.initial_address().checked_add(fde.len()).filter(|_| fde.len() > 0) {
                let is_entry = begins_as_called(&fde, &eh_frame, &bases);
                frames.push(Frame { start: fde.initial_address(), end, is_entry });
            }
            if frames.len() >= MAX_FRAMES {
                break;
            }
        }
        frames.sort_unstable();
        Ok(Self(frames))
    }

    /// Finds the frame that an address is in. `None` as well if frames overlap there: then the file
    /// contradicts itself.
    pub(super) fn at(&self, address: u64) -> Option<Frame> {
        let next = self.0.partition_point(|frame| frame.start <= address);
        let frame = self.0.get(next.checked_sub(1)?)?;
        let overlapped = next.checked_sub(2).and_then(|before| self.0.get(before));
        let overlapped = overlapped.is_some_and(|before| before.end > frame.start);
        (address < frame.end && !overlapped).then_some(*frame)
    }
}

/// Tells whether the FDE states nothing before the first instruction has run: the frame is as the call left
/// it.
fn begins_as_called(
    fde: &FrameDescriptionEntry<Slice<'_>>,
    eh_frame: &EhFrame<Slice<'_>>,
    bases: &BaseAddresses,
) -> bool {
    matches!(
        fde.instructions(eh_frame, bases).next(),
        Ok(None | Some(CallFrameInstruction::AdvanceLoc { .. } | CallFrameInstruction::Nop))
    )
}
