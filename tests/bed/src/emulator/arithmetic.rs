//! Element types and sums.

use anyhow::{Result, bail};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Elem {
    U8,
    U32,
    U64,
    F32,
    F64,
}

impl Elem {
    /// From `ncclDataType_t`. Sums of signed integers are sums of unsigned ones.
    pub(crate) fn of(dtype: usize) -> Result<Self> {
        Ok(match dtype {
            0 | 1 => Self::U8,
            2 | 3 => Self::U32,
            4 | 5 => Self::U64,
            7 => Self::F32,
            8 => Self::F64,
            _ => bail!("the emulator has no arithmetic for data type {dtype}"),
        })
    }

    pub(crate) fn size(self) -> usize {
        match self {
            Self::U8 => 1,
            Self::U32 | Self::F32 => 4,
            Self::U64 | Self::F64 => 8,
        }
    }

    /// Adds `terms` to `sums`, element by element.
    pub(crate) fn add(self, sums: &mut [u8], terms: &[u8]) {
        match self {
            Self::U8 => each(sums, terms, |a: [u8; 1], b| [a[0].wrapping_add(b[0])]),
            Self::U32 => each(sums, terms, |a, b| {
                u32::from_ne_bytes(a).wrapping_add(u32::from_ne_bytes(b)).to_ne_bytes()
            }),
            Self::U64 => each(sums, terms, |a, b| {
                u64::from_ne_bytes(a).wrapping_add(u64::from_ne_bytes(b)).to_ne_bytes()
            }),
            Self::F32 => each(sums, terms, |a, b| {
                let sum = f32::from_ne_bytes(a) + f32::from_ne_bytes(b);
                sum.to_ne_bytes()
            }),
            Self::F64 => each(sums, terms, |a, b| {
                let sum = f64::from_ne_bytes(a) + f64::from_ne_bytes(b);
                sum.to_ne_bytes()
            }),
        }
    }
}

fn each<const N: usize>(sums: &mut [u8], terms: &[u8], add: impl Fn([u8; N], [u8; N]) -> [u8; N]) {
    let (sums, _) = sums.as_chunks_mut::<N>();
    let (terms, _) = terms.as_chunks::<N>();
    for (sum, term) in sums.iter_mut().zip(terms) {
        *sum = add(*sum, *term);
    }
}
