//! Files whose formats are kept as they are: the numbers are those of the file.

use crate::checkpoints::Opened;
use crate::checkpoints::collect::{Collect, Mat};
use llamabi::Dtype;
use llamabi::backend::{MatUse, Weights};
use llamabi::checkpoint::files::Finder;
use llamabi::checkpoint::stored::Wanted;
use llamabi::checkpoint::weights::LoadControl;
use llamabi::model::matrices::Part;
use std::path::Path;

fn open(name: &str) -> Opened {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(name);
    Opened::new(&path, 0).unwrap()
}

fn opened() -> Opened {
    open("gguf/mixed-k.gguf")
}

fn load(opened: &Opened, asked: Option<Dtype>) -> Weights<Collect> {
    let mut control = LoadControl {
        cancel: None,
        progress: &mut |_| true,
    };
    opened
        .load(&Collect::default(), asked, &mut control)
        .unwrap()
}

fn matrices(weights: &Weights<Collect>) -> Vec<&Mat> {
    let layers = weights.layers.iter();
    let layers = layers.flat_map(|l| [&l.wqkv, &l.wo, &l.w13, &l.w2]);
    layers
        .chain(Some(&weights.embedding))
        .chain(&weights.head)
        .collect()
}

/// Every part has a format of its own, and k4, k5, k6 and k8 hold the very numbers that
/// float32 has.
#[test]
fn k_types_are_kept_exactly() {
    let opened = opened();
    let (kept, exact) = (load(&opened, None), load(&opened, Some(Dtype::F32)));
    let mut seen = [0; 4];
    for (kept, exact) in matrices(&kept).into_iter().zip(matrices(&exact)) {
        for (part, &dtype) in kept.dtypes.iter().enumerate() {
            match dtype {
                Dtype::K4 => seen[0] += 1,
                Dtype::K5 => seen[1] += 1,
                Dtype::K6 => seen[2] += 1,
                Dtype::K8 => seen[3] += 1,
                _ => continue,
            }
            let quant = dtype.quant().unwrap();
            let (codes, scales) = kept.coded(part);
            let codes = codes.chunks(quant.code_bytes(kept.cols));
            let rows = codes.zip(scales.chunks(quant.scales(kept.cols)));
            let mut row = vec![f32::NAN; kept.cols];
            let all = exact.part(part).chunks(kept.cols);
            assert_eq!(
                (rows.len(), all.len()),
                (kept.parts[part], kept.parts[part])
            );
            for ((codes, scales), want) in rows.zip(all) {
                quant.decode(codes, scales, &mut row);
                assert_eq!(row, want, "{dtype}");
            }
        }
    }
    // The gate; up, and the embedding, which is the head too; v and k, beside a q that is int8.
    assert_eq!(seen, [1, 2, 1, 1]);
    let qkv = &kept.layers[0].wqkv.dtypes;
    assert_eq!(qkv, &[Dtype::Int8, Dtype::K8, Dtype::K6]);
    assert_eq!(kept.layers[0].w13.dtypes, [Dtype::K4, Dtype::K5]);
}

/// What each checkpoint's layers are kept as, and whether these are the very numbers that float32
/// has. Scales that are rounded to f16 move a weight by 4.9e-4 of its scale times its code.
#[test]
fn stored_codes_are_kept() {
    let exact = 0.0;
    for (name, dtype, bound) in [
        ("gguf/mixed32-qwen2.gguf", Dtype::Iq4, 5e-4),
        ("gguf/mixed32-qwen2.gguf", Dtype::Uint4, 5e-4),
        ("quantised/awq-g32", Dtype::Uint4, exact),
        ("quantised/gptq-asym-g64", Dtype::Uint4, exact),
        ("quantised/ct-pack-asym", Dtype::Uint4, 5e-4),
        ("quantised/gptq-2bit", Dtype::Int4, exact),
        ("quantised/gptq-3bit", Dtype::Int4, exact),
        ("quantised/gptq-v2", Dtype::Int4, exact),
        ("quantised/gptq-8bit", Dtype::Int8, exact),
    ] {
        let opened = open(name);
        let (kept, exact) = (load(&opened, None), load(&opened, Some(Dtype::F32)));
        let mut seen = 0;
        for (kept, exact) in matrices(&kept).into_iter().zip(matrices(&exact)) {
            let parts = kept.dtypes.iter().enumerate();
            for (part, _) in parts.filter(|(_, kept)| **kept == dtype) {
                let quant = dtype.quant().unwrap();
                let (codes, scales) = kept.coded(part);
                let codes = codes.chunks(quant.code_bytes(kept.cols));
                let rows = codes.zip(scales.chunks(quant.scales(kept.cols)));
                let mut row = vec![f32::NAN; kept.cols];
                for ((codes, scales), want) in rows.zip(exact.part(part).chunks(kept.cols)) {
                    quant.decode(codes, scales, &mut row);
                    for (col, (x, y)) in row.iter().zip(want).enumerate() {
                        let [scale, _] = quant.scale(scales, col);
                        let most = bound * scale.abs() * 16.0;
                        assert!((x - y).abs() <= most, "{name} as {dtype}: {x} {y}");
                    }
                }
                seen += 1;
            }
        }
        assert!(seen > 0, "{name} as {dtype}");
    }
}

/// The embedding, 90 KB of Q5_K, is more than a thread reads at a time.
#[test]
fn many_rows_at_once_are_those_one_by_one() {
    const ROWS: usize = 512;
    const COLS: usize = 256;
    let opened = opened();
    let part = opened
        .checkpoint
        .part(&opened.config, Part::Embedding, None);
    let wanted = Wanted {
        part: Part::Embedding,
        usage: MatUse::Product,
        name: &part.name,
        within: None,
        rows: ROWS,
        cols: COLS,
    };
    let mut finder = Finder::new(&opened.files);
    let coded = opened.checkpoint.coded(&mut finder, &wanted).unwrap();
    let coded = coded.expect("codes");
    let quant = coded.natives()[0];
    let (width, each) = (quant.code_bytes(COLS), quant.scales(COLS));
    let reader = coded.reader().unwrap();
    let read = |rows: usize| {
        let mut codes = vec![0; ROWS * width];
        let (mut scales, mut floats) = (vec![0; ROWS * each], vec![f32::NAN; ROWS * COLS]);
        let parts = codes
            .chunks_mut(rows * width)
            .zip(scales.chunks_mut(rows * each));
        for (i, (codes, scales)) in parts.enumerate() {
            reader.native(quant, i * rows, codes, scales).unwrap();
        }
        for (i, floats) in floats.chunks_mut(rows * COLS).enumerate() {
            reader.floats(i * rows, floats).unwrap();
        }
        (codes, scales, floats)
    };
    let one_by_one = read(1);
    assert!(read(ROWS) == one_by_one && read(500) == one_by_one);
}
