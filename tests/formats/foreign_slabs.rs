//! Matrices that other programs store by columns are read some hundred rows at a time.

use crate::account::measure;
use crate::checkpoints::write::{Tensor, safetensors};
use crate::checkpoints::{Opened, TempDir};
use llamabi::backend::MatUse;
use llamabi::checkpoint::files::Finder;
use llamabi::checkpoint::stored::{Coded, Wanted};
use llamabi::model::matrices::Part;
use llamabi::quant::packed;
use serde_json::{Value, json};

const ROWS: usize = 4992; // several slabs, the last one smaller
const COLS: usize = 512;
const GROUP: usize = 128;

/// Numbers that differ everywhere.
fn words(n: usize, mut state: u32) -> Vec<u32> {
    let next = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state ^ state >> 15
    };
    (0..n).map(next).collect()
}

fn tensor(suffix: &str, dtype: &'static str, shape: &[usize], bytes: Vec<u8>) -> Tensor {
    Tensor {
        name: format!("model.layers.0.mlp.up_proj.{suffix}"),
        dtype,
        shape: shape.into(),
        bytes,
    }
}

struct Stored {
    dir: TempDir,
    codes: Vec<u32>,
    scales: Vec<f32>,
}

/// One matrix of a model whose others nobody asks for. `zeros` are the words of its zero points.
fn write(options: Value, codes: &[usize], shape: [usize; 2], zeros: &[u32]) -> Stored {
    let size = |shape: &[usize]| shape.iter().product::<usize>();
    let groups = COLS / GROUP;
    let stored = Stored {
        dir: TempDir::new(),
        codes: words(size(codes), 1),
        scales: (0..groups * ROWS)
            .map(|i| (1 + i % 997) as f32 / 1024.0)
            .collect(),
    };
    let bytes = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let halves = stored
        .scales
        .iter()
        .flat_map(|&x| half::f16::from_f32(x).to_le_bytes());
    let tensors = [
        tensor("qweight", "I32", codes, bytes(&stored.codes)),
        tensor("qzeros", "I32", &shape, bytes(zeros)),
        tensor("scales", "F16", &[groups, ROWS], halves.collect()),
    ];
    stored
        .dir
        .file("model.safetensors", safetensors(&tensors, 0));
    let config = json!({
        "model_type": "llama", "hidden_size": COLS, "intermediate_size": ROWS,
        "num_hidden_layers": 1, "num_attention_heads": 8, "rms_norm_eps": 1e-5, "vocab_size": 64,
        "quantization_config": options,
    });
    stored.dir.file("config.json", config.to_string());
    stored
}

/// All rows, in slabs, decoded as they are asked for; how many bytes that held, and how many
/// [`Coded::held_bytes`] says.
fn read(dir: &TempDir) -> (Vec<f32>, usize, usize) {
    let opened = Opened::new(dir.path(), 64).unwrap();
    let part = opened.checkpoint.part(&opened.config, Part::Up, Some(0));
    let wanted = Wanted {
        part: Part::Up,
        usage: MatUse::Product,
        name: &part.name,
        within: None,
        rows: ROWS,
        cols: COLS,
    };
    let mut finder = Finder::new(&opened.files);
    let coded = opened.checkpoint.coded(&mut finder, &wanted).unwrap();
    let coded: Box<dyn Coded + '_> = coded.expect("codes");
    let mut values = vec![f32::NAN; ROWS * COLS];
    let ((), used) = measure(usize::MAX, || {
        let mut reader = coded.reader().unwrap();
        let together = reader.together().expect("rows that are read together");
        for (slab, values) in values.chunks_mut(together * COLS).enumerate() {
            let first = slab * together;
            let rows = first..first + values.len() / COLS;
            let fill = |words: &mut [u32], n, fill: &(dyn Fn(usize, &mut [u32]) -> _ + Sync)| {
                words
                    .chunks_mut(n)
                    .enumerate()
                    .try_for_each(|(i, words)| fill(i, words))
            };
            reader.prepare(rows, &fill).unwrap();
            // Threads share a slab in pieces of any number of rows.
            for (i, values) in values.chunks_mut(100 * COLS).enumerate() {
                reader.floats(first + 100 * i, values).unwrap();
            }
        }
    });
    (values, used.most, coded.held_bytes() as usize)
}

#[track_caller]
fn check(stored: &Stored, codes: &[u8], zero: impl Fn(usize, usize) -> u8) {
    let (values, most, counted) = read(&stored.dir);
    for (row, values) in values.chunks(COLS).enumerate() {
        for (column, &value) in values.iter().enumerate() {
            let group = column / GROUP;
            let code = i32::from(codes[row * COLS + column]) - i32::from(zero(group, row));
            let want = code as f32 * stored.scales[group * ROWS + row];
            assert_eq!(value, want, "row {row}, column {column}");
        }
    }
    let whole = 4 * stored.codes.len();
    assert!(
        most <= counted,
        "{most} bytes were held, {counted} are counted"
    );
    assert!(counted < whole, "{counted} bytes, all codes have {whole}");
}

/// A matrix of GPTQ with these zero points, in groups of rows; the file has them as `stored` makes
/// them of a group's.
fn check_gptq(bits: usize, options: &Value, zeros: Vec<u8>, stored: impl Fn(&[u8]) -> Vec<u32>) {
    let mut all = json!({"quant_method": "gptq", "bits": bits, "group_size": GROUP, "sym": false});
    let options = options.as_object().unwrap().clone();
    all.as_object_mut().unwrap().extend(options);
    let (packed_cols, packed_rows) = (COLS * bits / 32, ROWS * bits / 32);
    let in_file: Vec<u32> = zeros.chunks(ROWS).flat_map(stored).collect();
    let shape = [COLS / GROUP, packed_rows];
    let stored = write(all, &[packed_cols, ROWS], shape, &in_file);
    let mut codes = vec![0; ROWS * COLS];
    packed::gptq(bits as u32, &stored.codes, ROWS, 0..ROWS, &mut codes);
    check(&stored, &codes, |group, row| zeros[group * ROWS + row]);
}

/// Codes as a stream of bits.
fn stream(bits: usize, codes: &[u8]) -> Vec<u32> {
    let mut words = vec![0; codes.len() * bits / 32];
    for (i, &code) in codes.iter().enumerate() {
        for bit in 0..bits {
            let at = i * bits + bit;
            words[at / 32] |= u32::from(code >> bit & 1) << (at % 32);
        }
    }
    words
}

/// All zero points that there are, 0 among them, one behind another in every order.
fn zero_points(bits: usize) -> Vec<u8> {
    let words = words(ROWS * COLS / GROUP, 2);
    words
        .iter()
        .map(|word| (word >> 7) as u8 & ((1 << bits) - 1) as u8)
        .collect()
}

#[test]
fn gptq_is_read_in_slabs_of_rows() {
    let version_2 = json!({"checkpoint_format": "gptq_v2"});
    for bits in [4, 3, 8] {
        check_gptq(bits, &version_2, zero_points(bits), |zeros| {
            stream(bits, zeros)
        });
    }
}

/// AutoGPTQ and GPTQModel make version 1 by subtracting from whole words, where a zero point of 0
/// borrows from the next one. GPTQModel's words for 3 bits are not 1 in each code.
#[test]
fn zero_points_of_gptq_version_1_are_restored_by_words() {
    let of_gptqmodel = json!({"checkpoint_format": "gptq",
        "meta": {"quantizer": ["optimum:1.24.0", "gptqmodel:2.2.0"]}});
    for (bits, less) in [
        (2, [0x5555_5555; 3]),
        (3, [0x2492_4924, 0x9249_2492, 0x4924_9249]),
        (4, [0x1111_1111; 3]),
        (8, [0x0101_0101; 3]),
    ] {
        let subtracted = |zeros: &[u8]| {
            let words = stream(bits, zeros).into_iter().zip(less.iter().cycle());
            words.map(|(word, less)| word.wrapping_sub(*less)).collect()
        };
        check_gptq(bits, &of_gptqmodel, zero_points(bits), subtracted);
        if bits != 3 {
            check_gptq(bits, &json!({}), zero_points(bits), subtracted);
        }
        // A symmetric quantisation shows by itself who wrote it.
        let middle = vec![1 << (bits - 1); ROWS * COLS / GROUP];
        check_gptq(bits, &json!({"sym": true}), middle, subtracted);
    }
}

/// Codes of 3 bits lie across words: AutoGPTQ subtracted 1 from each before it packed them.
#[test]
fn zero_points_of_3_bits_are_restored_by_codes() {
    let subtracted = |zeros: &[u8]| {
        let less: Vec<u8> = zeros.iter().map(|zero| zero.wrapping_sub(1) & 7).collect();
        stream(3, &less)
    };
    check_gptq(3, &json!({}), zero_points(3), subtracted);
    check_gptq(
        3,
        &json!({"sym": true}),
        vec![4; ROWS * COLS / GROUP],
        subtracted,
    );
}

#[test]
fn awq_is_read_in_slabs_of_rows() {
    let options = json!({"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": true,
        "version": "gemm"});
    let shape = [COLS / GROUP, ROWS / 8];
    let of_file = words(shape[0] * shape[1], 2);
    let stored = write(options, &[COLS, ROWS / 8], shape, &of_file);
    let (mut codes, mut zeros) = (vec![0; ROWS * COLS], vec![0; ROWS * COLS / GROUP]);
    packed::awq(&stored.codes, ROWS, 0..ROWS, &mut codes);
    packed::awq(&of_file, ROWS, 0..ROWS, &mut zeros);
    check(&stored, &codes, |group, row| {
        zeros[row * (COLS / GROUP) + group]
    });
}
