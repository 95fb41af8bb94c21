//! bitsandbytes' formats, as far as they are not [`super::nf4`]'s: its 4-bit floats, 4-bit blocks
//! of any size, and rows of 8 bits.

use super::nf4;

/// The values of fp4's codes: a sign, then 0, 1/192, and 2/3, 1, 1/3, 1/2, 1/6, 1/4 (`kernels.cu`,
/// `dDequantizeFP4Tree`).
pub const FP4: [f32; 16] = {
    const POSITIVE: [f32; 8] = [
        0.0,
        0.005_208_333_4,
        0.666_666_7,
        1.0,
        0.333_333_34,
        0.5,
        0.166_666_67,
        0.25,
    ];
    let mut all = [0.0; 16];
    let mut i = 0;
    while i < 8 {
        all[i] = POSITIVE[i];
        all[i + 8] = -POSITIVE[i];
        i += 1;
    }
    all
};

/// The two formats of 4 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// [`nf4::CODEBOOK`].
    Nf4,
    /// [`FP4`].
    Fp4,
}

impl Kind {
    /// bitsandbytes' name of it.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Nf4 => "nf4",
            Kind::Fp4 => "fp4",
        }
    }

    /// What the codes stand for.
    pub const fn codebook(self) -> &'static [f32; 16] {
        match self {
            Kind::Nf4 => &nf4::CODEBOOK,
            Kind::Fp4 => &FP4,
        }
    }

    /// Weights of which the first is number `first` of its tensor, and whose code is number `at` of
    /// `packed`, where the first code of a byte is in the upper half. `absmax` has the scales of
    /// all blocks of `block` weights of the tensor; blocks may cross rows.
    pub fn decode(
        self,
        packed: &[u8],
        at: usize,
        absmax: &[f32],
        block: usize,
        first: usize,
        to: &mut [f32],
    ) {
        let codebook = self.codebook();
        for (i, to) in to.iter_mut().enumerate() {
            let code = packed[(at + i) / 2] >> (4 - (at + i) % 2 * 4) & 15;
            *to = codebook[usize::from(code)] * absmax[(first + i) / block];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_may_cross_rows() {
        let absmax = [1.0, 10.0, 100.0];
        // Rows of 6 weights, blocks of 4: the second row begins in the middle of block 1.
        let packed = [0x37, 0xb2, 0x10];
        let mut row = [0.0; 6];
        Kind::Fp4.decode(&packed, 0, &absmax, 4, 6, &mut row);
        assert_eq!(
            row,
            [10.0, 2.5, -100.0, FP4[2] * 100.0, FP4[1] * 100.0, 0.0]
        );
        Kind::Nf4.decode(&[0xcf, 0x70, 0xf0], 1, &absmax, 4, 0, &mut row[..4]);
        assert_eq!(row[..4], [1.0, 0.0, -1.0, 1.0]);
    }
}
