//! Memory of this process that has the shape of the library's structs. It lives as long as the process.

use anyhow::{Context as _, Result, bail};
use nccl_library::layouts::{Field, Layouts};

/// Size of the smallest pages.
const PAGE: usize = 4096;

/// A struct, or an array of them, filled with zeroes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Memory {
    pub(crate) address: usize,
    size: usize,
}

impl Memory {
    pub(crate) fn zeroed(size: usize) -> Self {
        // Of words, so that it is aligned.
        let words = Box::leak(vec![0u64; size.div_ceil(8)].into_boxed_slice());
        // A page that was never written to is not resident, and a probe, which must not wait, cannot read it.
        for word in words.iter_mut().step_by(PAGE / 8) {
            // SAFETY: a word of our own.
            unsafe { std::ptr::write_volatile(word, 0) };
        }
        Self { address: words.as_mut_ptr() as usize, size: words.len() * 8 }
    }

    pub(crate) fn of(layouts: &Layouts, name: &str, count: usize) -> Result<Self> {
        Ok(Self::zeroed(size_of(layouts, name)? * count))
    }

    /// The part of it from `offset` on.
    pub(crate) fn at(self, offset: usize) -> Result<Self> {
        let size = self.size.checked_sub(offset).context("a struct outside of its array")?;
        Ok(Self { address: self.address + offset, size })
    }

    pub(crate) fn write(self, offset: usize, value: u64, size: usize) -> Result<()> {
        let bytes = value.to_le_bytes();
        let bytes = bytes.get(..size).with_context(|| format!("a number of {size} bytes"))?;
        if offset.checked_add(size).is_none_or(|end| end > self.size) {
            bail!("a field outside of its struct");
        }
        // SAFETY: inside of memory that belongs to nobody but this.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), (self.address + offset) as *mut u8, size) };
        Ok(())
    }

    pub(crate) fn read(self, offset: usize, size: usize) -> Result<u64> {
        let mut bytes = [0; 8];
        let part = bytes.get_mut(..size).with_context(|| format!("a number of {size} bytes"))?;
        if offset.checked_add(size).is_none_or(|end| end > self.size) {
            bail!("a field outside of its struct");
        }
        // SAFETY: as above.
        unsafe {
            std::ptr::copy_nonoverlapping((self.address + offset) as *const u8, part.as_mut_ptr(), size);
        };
        Ok(u64::from_le_bytes(bytes))
    }

    /// Sets a field. One of several bits keeps its neighbours.
    pub(crate) fn set(self, layouts: &Layouts, strukt: &str, path: &str, value: u64) -> Result<()> {
        let field = field(layouts, strukt, path)?;
        let (offset, size) = (usize::try_from(field.offset)?, usize::try_from(field.size)?);
        let value = match field.bits {
            Some(bits) => {
                let mask = ((1u64 << bits.width) - 1) << bits.shift;
                (self.read(offset, size)? & !mask) | ((value << bits.shift) & mask)
            }
            None => value,
        };
        self.write(offset, value, size)
    }

    /// Sets a field that not every version has; returns whether this one has it.
    pub(crate) fn set_if_any(self, layouts: &Layouts, strukt: &str, path: &str, value: u64) -> Result<bool> {
        let known = layouts.field(strukt, path).is_some();
        if known {
            self.set(layouts, strukt, path, value)?;
        }
        Ok(known)
    }

    pub(crate) fn get(self, layouts: &Layouts, strukt: &str, path: &str) -> Result<u64> {
        let field = field(layouts, strukt, path)?;
        let value = self.read(usize::try_from(field.offset)?, usize::try_from(field.size)?)?;
        Ok(match field.bits {
            Some(bits) => (value >> bits.shift) & ((1 << bits.width) - 1),
            None => value,
        })
    }
}

/// `-1`, which the library writes for "no rank".
pub(crate) fn rank(number: i32) -> u64 {
    u64::from(number.cast_unsigned())
}

pub(crate) fn size_of(layouts: &Layouts, name: &str) -> Result<usize> {
    let size = layouts.struct_size(name).with_context(|| format!("the layout of {name} is not known"))?;
    Ok(usize::try_from(size)?)
}

pub(crate) fn field(layouts: &Layouts, strukt: &str, path: &str) -> Result<Field> {
    layouts.field(strukt, path).with_context(|| format!("{strukt}.{path} is not known"))
}

pub(crate) fn offset(layouts: &Layouts, strukt: &str, path: &str) -> Result<usize> {
    Ok(usize::try_from(field(layouts, strukt, path)?.offset)?)
}
