//! Quantised weights as files have them, and what products should make of them.

use super::*;
use crate::backend::QuantData;
use crate::backend::cpu::blocks::{Blocks, with_blocks};
use crate::backend::cpu::integers;
use crate::quant::{Quant, k, nf4::DoubleQuant};
use half::f16;

/// Codes and scales (f16 bits) of a matrix, parts one after another, each part quantised by itself.
pub struct Encoded {
    pub quant: Quant,
    pub cols: usize,
    pub codes: Vec<u8>,
    pub scales: Vec<u16>,
}

impl Encoded {
    /// As files of other programs have them: with codes of -128, which `encode` never gives.
    pub fn new(dense: &Dense, parts: &[usize], quant: Quant) -> Encoded {
        let mut encoded = Encoded::made(dense, parts, quant);
        if matches!(quant, Quant::Int8 | Quant::K8) {
            for row in encoded.codes.chunks_mut(dense.cols) {
                let codes = row.iter_mut().enumerate();
                let some =
                    codes.filter(|(i, code)| i % 71 == 0 || **code == -127i8 as u8 && i % 2 == 0);
                some.for_each(|(_, code)| *code = -128i8 as u8);
            }
        }
        encoded
    }

    pub fn made(dense: &Dense, parts: &[usize], quant: Quant) -> Encoded {
        let cols = dense.cols;
        let (mut codes, mut scales) = (Vec::new(), Vec::new());
        let mut first = 0;
        for rows in parts {
            let values = &dense.weights[first * cols..(first + rows) * cols];
            let mut c = vec![0; rows * quant.code_bytes(cols)];
            if quant.is_of_files() {
                for (row, c) in values
                    .chunks(cols)
                    .zip(c.chunks_mut(quant.code_bytes(cols)))
                {
                    scales.extend(match quant.is_k() {
                        true => encode_k(quant, row, c),
                        false => encode_four(quant, row, c),
                    });
                }
                codes.extend(c);
                first += rows;
                continue;
            }
            let mut s = vec![0.0; rows * quant.scales(cols)];
            quant.encode(cols, values, &mut c, &mut s);
            codes.extend(c);
            match quant {
                Quant::Nf4 => scales.extend(DoubleQuant::new(&s).unwrap().scales().unwrap()),
                _ => scales.extend(s.iter().map(|&s| f16::from_f32(s).to_bits())),
            }
            first += rows;
        }
        Encoded {
            quant,
            cols,
            codes,
            scales,
        }
    }

    pub fn codes(&self, row: usize) -> &[u8] {
        let n = self.quant.code_bytes(self.cols);
        &self.codes[row * n..][..n]
    }

    pub fn scales(&self, row: usize) -> &[u16] {
        let n = self.quant.scales(self.cols);
        &self.scales[row * n..][..n]
    }

    pub fn decode(&self, bias: &[f32]) -> Dense {
        let rows = self.scales.len() / self.quant.scales(self.cols);
        let mut weights = vec![0.0; rows * self.cols];
        for (row, to) in weights.chunks_mut(self.cols).enumerate() {
            self.quant.decode(self.codes(row), self.scales(row), to);
        }
        Dense {
            weights,
            cols: self.cols,
            bias: bias.to_vec(),
        }
    }

    /// What products of integers multiply with: codes have values that are multiples of a unit.
    pub fn multiples(&self, bias: &[f32]) -> Dense {
        let mut dense = self.decode(bias);
        let unit = unit(self.quant);
        for (row, to) in dense.weights.chunks_mut(self.cols).enumerate() {
            for (k, to) in to.iter_mut().enumerate().filter(|_| unit != 1.0) {
                let value = self.quant.value(self.quant.code(self.codes(row), k));
                let [scale, _] = self.quant.scale(self.scales(row), k);
                *to = scale * ((value / unit).round() * unit);
            }
        }
        dense
    }

    /// The same matrix for its scalar twin, unpacked once: a test asks for millions of products.
    pub fn twin(&self) -> Twin<'_> {
        let rows = self.codes.len() / self.quant.code_bytes(self.cols);
        let (mut weights, mut reach) = (Vec::new(), Vec::new());
        for row in 0..rows {
            for k in 0..self.cols {
                let value = self.quant.value(self.quant.code(self.codes(row), k));
                let [scale, minimum] = self.quant.scale(self.scales(row), k).map(f64::from);
                weights.push((value / unit(self.quant)).round() as i32);
                reach.push((scale * f64::from(value)).abs() + minimum.abs());
            }
        }
        Twin {
            of: self,
            weights,
            reach,
        }
    }
}

/// What products of integers, without tiles, should make of a matrix.
pub struct Twin<'a> {
    of: &'a Encoded,
    /// Values of codes as multiples of the unit, row by row.
    weights: Vec<i32>,
    /// `|scale q| + |minimum|` of every weight.
    reach: Vec<f64>,
}

impl Twin<'_> {
    /// `sum |scale q x| + |minimum x|` of row `row`: what sums are rounded against. The two may
    /// cancel.
    pub fn magnitude(&self, row: usize, x: &[f64]) -> f64 {
        let reach = &self.reach[row * x.len()..][..x.len()];
        reach.iter().zip(x).map(|(reach, x)| reach * x.abs()).sum()
    }

    /// The result of row `row` without tiles: [`super::super::integers`] in scalar code.
    pub fn product(&self, row: usize, x: &Integers, fused: bool) -> f32 {
        let quant = self.of.quant;
        let unit = unit(quant);
        let add = |a: f32, b: f32, sum: f32| match fused {
            true => a.mul_add(b, sum),
            false => a * b + sum,
        };
        let span = quant.group().min(32);
        let weights = &self.weights[row * self.of.cols..][..self.of.cols];
        let mut sum = 0.0f32;
        for (g, (x, scale)) in x.values.chunks(32).zip(&x.scales).enumerate() {
            let mut minimum = 0.0;
            for (i, x) in x.chunks(span).enumerate() {
                let first = g * 32 + i * span;
                let dot: i32 = x.iter().zip(&weights[first..]).map(|(x, w)| w * x).sum();
                let [w, m] = quant.scale(self.of.scales(row), first);
                sum = add(dot as f32, w * (scale * unit), sum);
                minimum = m;
            }
            if quant.has_minima() {
                sum = add(minimum, -(scale * x.iter().sum::<i32>() as f32), sum);
            }
        }
        sum
    }
}

/// A row of activations as integers up to a greatest one, with a scale for each 32.
pub struct Integers {
    values: Vec<i32>,
    scales: Vec<f32>,
}

impl Integers {
    pub fn new(x: &[f32], top: f32) -> Self {
        let (mut values, mut scales) = (Vec::new(), Vec::new());
        for x in x.chunks(32) {
            let max = x.iter().fold(0.0f32, |m, x| m.max(x.abs()));
            let (inverse, scale) = match max > 1e-30 {
                true => (top / max, max / top),
                false => (0.0, 0.0),
            };
            scales.push(scale);
            values.extend(x.iter().map(|x| (x * inverse).round_ties_even() as i32));
        }
        Self { values, scales }
    }
}

/// What products of integers take the values of codes as multiples of.
pub fn unit(quant: Quant) -> f32 {
    with_blocks!(quant, Q => Q::UNIT)
}

/// The greatest integer of a group of activations; `None` if they are no integers.
pub fn top(tier: Tier, kind: RowKind, precision: Precision, quant: Quant) -> Option<f32> {
    let pairs = with_blocks!(quant, Q => Q::TOP);
    let coarse = matches!(quant, Quant::Int4 | Quant::K4);
    let fast = matches!(precision, Precision::Fast(_));
    let tiled = kind == RowKind::Decode && precision == Precision::Fast(16);
    match arithmetic(kind, precision) {
        RowKind::Decode => Some(pairs),
        _ if tier.has_byte_tiles() && tiled && integers::has_bytes(tier, quant) => Some(127.0),
        _ if tier.has_tiles() || !tier.has_pairs() => None,
        _ if (coarse || fast) && integers::has_bytes(tier, quant) => Some(127.0),
        _ => Some(pairs),
    }
}

/// Activations as products of integers take them, as numbers.
pub fn activations(top: f32, mut x: Vec<f64>) -> Vec<f64> {
    for x in x.chunks_mut(32) {
        let max = x.iter().fold(0.0f64, |m, x| m.max(x.abs()));
        let step = max.max(1e-30) / f64::from(top);
        x.iter_mut()
            .for_each(|x| *x = (*x / step).round_ties_even() * step);
    }
    x
}

/// A row of a format with four bits, plainly: no search. Some scales are negative, and zero points
/// are integers or fractions.
pub fn encode_four(quant: Quant, row: &[f32], codes: &mut [u8]) -> Vec<u16> {
    let mut words = Vec::new();
    let book = quant.codebook();
    let greatest = book.iter().fold(0f32, |a, b| a.max(b.abs()));
    for (g, (x, codes)) in row.chunks(32).zip(codes.chunks_mut(16)).enumerate() {
        let (low, high) = x
            .iter()
            .fold((0f32, 0f32), |(a, b), &x| (a.min(x), b.max(x)));
        let sign = if g % 3 == 1 { -1.0 } else { 1.0 };
        let odd = x.iter().map(|x| x * 0.0).sum::<f32>();
        let (scale, zero) = match quant.has_minima() {
            false => (high.max(-low) / greatest, 0.0),
            true if high == low => (0.0, 0.0),
            true => {
                let zero = -15.0 * low / (high - low);
                // A negative scale counts from the other end.
                let zero = if sign < 0.0 { 15.0 - zero } else { zero };
                let zero = if g % 2 == 0 { zero.round() } else { zero };
                ((high - low) / 15.0, f16::from_f32(zero).to_f32())
            }
        };
        let scale = f16::from_f32(scale * sign + odd);
        words.push(scale.to_bits());
        if quant.has_minima() {
            words.push(f16::from_f32(zero).to_bits());
        }
        let code = |x: f32| {
            let wanted = match scale.to_f32() {
                0.0 => 0.0,
                scale => x / scale + zero,
            };
            let off = |q: &usize| (book[*q] - wanted).abs();
            (0..16).min_by(|a, b| off(a).total_cmp(&off(b))).unwrap() as u8
        };
        for (pair, to) in x.chunks(2).zip(codes) {
            *to = code(pair[0]) << 4 | pair.get(1).map_or(0, |&x| code(x));
        }
    }
    words
}

/// A row of a K type, plainly: no search. Codes and scales take all values that the formats have,
/// also negative scales.
pub fn encode_k(quant: Quant, row: &[f32], codes: &mut [u8]) -> Vec<u16> {
    let mut words = Vec::new();
    let each = quant.code_bytes(256);
    // The least and the greatest code, less the code of zero; and this code.
    let (least, most, zero) = match quant {
        Quant::K4 => (0.0, 15.0, 0),
        Quant::K5 => (0.0, 31.0, 0),
        Quant::K6 => (-32.0, 31.0, 32),
        _ => (-127.0, 127.0, 0),
    };
    for (x, codes) in row.chunks(256).zip(codes.chunks_mut(each)) {
        let odd = if x.iter().all(|x| x.is_finite()) {
            0.0
        } else {
            f32::NAN
        };
        let groups = x.chunks(quant.group());
        // The numbers 0 and 1 of a group: its lowest, and its range; or its greatest magnitude.
        let of = |x: &[f32]| {
            let (low, high) = x
                .iter()
                .fold((0f32, 0f32), |(a, b), &x| (a.min(x), b.max(x)));
            match quant.has_minima() {
                true => [(high - low) / most, -low],
                false => [high.max(-low) / most, 0.0],
            }
        };
        let [d, dmin] = groups
            .clone()
            .map(of)
            .fold([0.0f32; 2], |a, b| [a[0].max(b[0]), a[1].max(b[1])]);
        let half = |x: f32| f16::from_f32(x / 127.0);
        let [d, dmin] = [half(d), half(dmin)];
        let over = |x: f32, d: f16| match d.to_f32() {
            0.0 => 0.0,
            d => (x / d).round().clamp(0.0, 127.0),
        };
        let mut bytes = Vec::new();
        let mut whole = Vec::new();
        for (g, x) in groups.enumerate() {
            let [scale, minimum] = of(x);
            let (mut s, m) = (over(scale, d), over(minimum, dmin));
            if !quant.has_minima() && g % 3 == 1 {
                s = -s;
            }
            let (ds, dm) = (d.to_f32() * s, dmin.to_f32() * m);
            let code = |x: &f32| match ds {
                0.0 => zero,
                ds => (((x + dm) / ds).round().clamp(least, most) as i8 as u8).wrapping_add(zero),
            };
            whole.extend(x.iter().map(code));
            bytes.push(s as i8 as u8);
            if quant.has_minima() {
                bytes.push(m as u8);
            }
        }
        match quant {
            Quant::K4 => {
                for (to, pair) in codes.iter_mut().zip(whole.chunks(2)) {
                    *to = pair[0] << 4 | pair[1];
                }
            }
            Quant::K8 => codes.copy_from_slice(&whole),
            _ => pack(k::plane_bits(quant), whole.first_chunk().unwrap(), codes),
        }
        words.extend(bytes.chunks(2).map(|b| u16::from_le_bytes([b[0], b[1]])));
        words.push(f16::from_f32(d.to_f32() + odd).to_bits());
        if quant.has_minima() {
            words.push(dmin.to_bits());
        }
    }
    words
}

/// Stores the codes of a block, one in a byte, as nibbles and a plane of `bits` bits, which `to`
/// has room for.
fn pack(bits: usize, codes: &[u8; k::BLOCK], to: &mut [u8]) {
    let (nibbles, plane) = to.split_at_mut(k::NIBBLES);
    for (pair, to) in codes.as_chunks::<2>().0.iter().zip(nibbles) {
        *to = (pair[0] & 15) << 4 | pair[1] & 15;
    }
    let mask = 0x0101_0101 * ((1 << bits) - 1);
    let words = codes.chunks_exact(32 / bits);
    for (codes, to) in words.zip(plane.as_chunks_mut::<4>().0) {
        let mut word = 0;
        for (i, four) in codes.as_chunks::<4>().0.iter().enumerate() {
            word |= (u32::from_le_bytes(*four) >> 4 & mask) << (i * bits);
        }
        *to = word.to_le_bytes();
    }
}

/// Packs `dense` in blocks of a few rows, scales after codes.
pub fn to_mat(cpu: &Cpu, dense: &Dense, parts: &[usize], quant: Quant) -> CpuMat {
    let encoded = Encoded::new(dense, parts, quant);
    let mut mat = cpu
        .new_mat(&MatSpec {
            parts: PartSpec::all(parts, quant.dtype()),
            cols: dense.cols,
            bias: !dense.bias.is_empty(),
            scale: 1.0,
            usage: MatUse::Product,
            adapter_index: None,
        })
        .unwrap();
    let (bytes, scales) = (quant.code_bytes(dense.cols), quant.scales(dense.cols));
    let mut first = 0;
    for (part, &rows) in parts.iter().enumerate() {
        let mut pack = |row, data| {
            let order = RowOrder::AsStored;
            cpu.pack_quantised(
                &mut mat,
                &QuantBlock {
                    part,
                    row,
                    order,
                    data,
                },
            );
        };
        for row in (0..rows).step_by(37) {
            let (from, to) = (first + row, first + (row + 37).min(rows));
            pack(
                row,
                QuantData::Codes(&encoded.codes[from * bytes..to * bytes]),
            );
        }
        let all = &encoded.scales[first * scales..(first + rows) * scales];
        pack(0, QuantData::Scales(all));
        if !dense.bias.is_empty() {
            cpu.set_bias(&mut mat, part, &dense.bias[first..first + rows]);
        }
        first += rows;
    }
    mat
}
