//! The table of rotations that a configuration asks for, against its definition.

use crate::config::{config4, llama3_scaling, read, refused, with};
use llamabi::Error;
use llamabi::backend::{Rotation, Shape};
use llamabi::model::config::{Biases, Config, RopeScaling};
use llamabi::model::rope;
use serde_json::{Value, json};

/// Inverse frequencies computed with PyTorch's operations, each in float32.
fn table(
    rope_theta: f64,
    rope_scaling: RopeScaling,
    head_dim: usize,
    n: usize,
) -> (Vec<f32>, Vec<f32>) {
    let config = read("config.json", &config4()).unwrap();
    let shape = Shape {
        head_dim,
        ..config.shape.clone()
    };
    let config = Config {
        rope_theta,
        rope_scaling,
        rotary_dim: head_dim,
        shape,
        ..config
    };
    let table = rope::table(&config, n).unwrap();
    assert_eq!(
        rope::table_bytes(&config, n),
        4 * (table.cos.len() + table.sin.len()) as u64
    );
    (table.cos, table.sin)
}

#[test]
fn the_table_is_metas() {
    let (cos, sin) = table(10_000.0, RopeScaling::None, 8, 3);
    // Frequencies 1, 0.1, 0.01, 0.001.
    let angle = |position: f32, i: i32| position * 10f32.powi(-i);
    for (k, (cos, sin)) in cos.iter().zip(&sin).enumerate() {
        let angle = angle((k / 4) as f32, (k % 4) as i32);
        assert!((cos - angle.cos()).abs() < 1e-6 && (sin - angle.sin()).abs() < 1e-6);
    }
}

#[test]
fn angles_are_rounded_to_float32_as_metas_are() {
    // At position 131,071 the float32 product differs from the exact angle by up to 2^-8.
    let n = 131_072;
    let (cos, _) = table(500_000.0, RopeScaling::None, 128, n);
    let mut worst: f64 = 0.0;
    for (i, cos) in cos[(n - 1) * 64..].iter().enumerate() {
        let exponent = (2 * i) as f32 / 128.0;
        let frequency = 1.0 / (500_000f64.powf(exponent.into()) as f32);
        let rounded = (n - 1) as f32 * frequency;
        assert!((f64::from(*cos) - f64::from(rounded).cos()).abs() < 1e-6);
        worst = worst.max((f64::from(*cos) - ((n - 1) as f64 * f64::from(frequency)).cos()).abs());
    }
    assert!(
        worst > 1e-4,
        "the exact angle would be another model: {worst}"
    );
}

#[test]
fn stretched_frequencies() {
    // The first row after position 0 holds cos and sin of the frequencies themselves.
    let frequencies = |scaling| -> Vec<f64> {
        let (cos, sin) = table(500_000.0, scaling, 128, 2);
        let pairs = sin[64..].iter().zip(&cos[64..]);
        pairs
            .map(|(s, c)| f64::from(*s).atan2(f64::from(*c)))
            .collect()
    };
    let plain = frequencies(RopeScaling::None);
    let linear = frequencies(RopeScaling::Linear { factor: 4.0 });
    let llama3 = frequencies(llama3_scaling(8.0, 8192.0));
    let (mut kept, mut between, mut divided) = (0, 0, 0);
    for i in 0..64 {
        assert!((linear[i] / plain[i] - 0.25).abs() < 1e-6);
        let wavelength = 2.0 * std::f64::consts::PI / plain[i];
        let expected = if wavelength < 8192.0 / 4.0 {
            kept += 1;
            1.0
        } else if wavelength > 8192.0 {
            divided += 1;
            1.0 / 8.0
        } else {
            between += 1;
            let smooth = (8192.0 / wavelength - 1.0) / 3.0;
            (1.0 - smooth) / 8.0 + smooth
        };
        assert!((llama3[i] / plain[i] - expected).abs() < 1e-5, "{i}");
    }
    // Llama 3.1: 29 pairs keep their frequency, 6 are on the ramp, 29 turn eight times slower.
    assert_eq!((kept, between, divided), (29, 6, 29));
}

/// Frequencies of theta 10,000 and heads of 128, and their amplitude.
fn frequencies_and_amplitude(scaling: RopeScaling, positions: usize) -> (Vec<f64>, f64) {
    let (cos, sin) = table(10_000.0, scaling, 128, positions);
    let pair = |i: usize| (f64::from(sin[64 + i]), f64::from(cos[64 + i]));
    let frequencies = (0..64).map(|i| pair(i).0.atan2(pair(i).1)).collect();
    (frequencies, f64::from(cos[0]))
}

#[test]
fn yarn_divides_what_turns_slowly() {
    for truncate in [true, false] {
        let scaling = RopeScaling::Yarn {
            factor: 4.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            original_context: 4096.0,
            truncate,
            amplitude: 1.25,
        };
        let (got, amplitude) = frequencies_and_amplitude(scaling, 2);
        assert_eq!(amplitude, 1.25);
        // The dimensions that turn 32 times and once in 4,096 positions are 20.94 and 45.03.
        let dimension = |turns: f64| {
            64.0 * (4096.0 / (turns * 2.0 * std::f64::consts::PI)).ln() / 10_000f64.ln()
        };
        let (low, high) = match truncate {
            true => (20.0, 46.0),
            false => (dimension(32.0), dimension(1.0)),
        };
        for (i, got) in got.iter().enumerate() {
            let plain = 10_000f64.powf(-(i as f64) / 64.0);
            let ramp = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
            let want = plain * (1.0 - ramp) + plain / 4.0 * ramp;
            assert!((got / want - 1.0).abs() < 1e-5, "{i}: {got}, not {want}");
        }
    }
}

#[test]
fn dynamic_and_longrope_go_by_the_longest_sequence() {
    let dynamic = RopeScaling::Dynamic {
        factor: 2.0,
        original_context: 64.0,
    };
    let long = RopeScaling::LongRope {
        short: vec![1.5; 64],
        long: vec![3.0; 64],
        original_context: 64.0,
        amplitude: 1.25,
    };
    for (positions, stretch, divisor) in [(2, 1.0, 1.5), (64, 1.0, 1.5), (192, 5.0, 3.0)] {
        let theta = 10_000.0 * f64::powf(stretch, 128.0 / 126.0);
        let (dynamic, one) = frequencies_and_amplitude(dynamic.clone(), positions);
        let (long, amplitude) = frequencies_and_amplitude(long.clone(), positions);
        assert_eq!((one, amplitude), (1.0, 1.25));
        for i in 0..64 {
            let want = theta.powf(-(i as f64) / 64.0);
            assert!((dynamic[i] / want - 1.0).abs() < 1e-5, "{positions}, {i}");
            let want = 10_000f64.powf(-(i as f64) / 64.0) / divisor;
            assert!((long[i] / want - 1.0).abs() < 1e-5, "{positions}, {i}");
        }
    }
}

#[test]
fn windows_and_defaults_are_the_familys() {
    let family = |model_type: &str, class: &str, changes: &Value| {
        let names = json!({"model_type": model_type, "architectures": [class],
            "rope_scaling": null});
        let mut config = with(with(config4(), &names), changes);
        for key in ["num_key_value_heads", "head_dim"] {
            config.as_object_mut().unwrap().remove(key);
        }
        config
    };
    let mistral = |changes| family("mistral", "MistralForCausalLM", &changes);
    let config = read("config.json", &mistral(json!({}))).unwrap();
    assert_eq!(
        (config.shape.n_kv_heads, config.window(15)),
        (8, Some(4096))
    );
    let none = read("config.json", &mistral(json!({"sliding_window": null}))).unwrap();
    assert_eq!(none.window(0), None);

    let qwen = |changes| family("qwen3", "Qwen3ForCausalLM", &changes);
    let config = read("config.json", &qwen(json!({"sliding_window": 7}))).unwrap();
    assert_eq!((config.shape.head_dim, config.window(0)), (128, None));
    let windows = |changes: Value| {
        let on = json!({"use_sliding_window": true, "sliding_window": 7});
        let config = read("config.json", &qwen(with(on, &changes))).unwrap();
        (0..16).map(|n| config.window(n)).collect::<Vec<_>>()
    };
    let from = |first| {
        (0..16)
            .map(|n| (n >= first).then_some(7))
            .collect::<Vec<_>>()
    };
    assert_eq!(windows(json!({})), from(28));
    assert_eq!(windows(json!({"max_window_layers": 0})), from(0));
    assert_eq!(windows(json!({"max_window_layers": 9})), from(9));
    let kind = |n| ["full_attention", "sliding_attention"][usize::from(n >= 3)];
    let layers: Vec<&str> = (0..16).map(kind).collect();
    assert_eq!(windows(json!({"layer_types": layers})), from(3));
    for layers in [json!(["full_attention"]), json!(vec!["linear"; 16])] {
        let error = refused("config.json", &qwen(json!({"layer_types": layers})));
        assert!(error.contains("a list of 16 times"), "{error}");
    }
    for (changes, expected) in [
        (
            json!({"sliding_window": 7}),
            "`use_sliding_window` is missing, expected true, as layer_types has sliding_attention",
        ),
        (
            json!({"use_sliding_window": true, "sliding_window": null}),
            "`sliding_window` is null, expected a number, as layer_types has sliding_attention",
        ),
    ] {
        let changes = with(changes, &json!({"layer_types": layers}));
        let error = refused("config.json", &qwen(changes));
        assert_eq!(error, format!("config.json: {expected}"));
    }
}

/// The original context may stand beside RoPE's keys, among them, or in both places.
#[test]
fn where_the_original_context_stands() {
    let original = "original_max_position_embeddings";
    let places = |mut config: Value, beside: Option<u32>, among: Option<u32>| {
        if let Some(n) = beside {
            config[original] = n.into();
        }
        if let Some(n) = among {
            config["rope_scaling"][original] = n.into();
        }
        config
    };
    let context = |config: &Value| match read("config.json", config).unwrap().rope_scaling {
        RopeScaling::Yarn {
            original_context, ..
        }
        | RopeScaling::Llama3 {
            original_context, ..
        }
        | RopeScaling::LongRope {
            original_context, ..
        } => original_context,
        other => panic!("{other:?}"),
    };
    let yarn = json!({"rope_type": "yarn", "factor": 2.0});
    let llama3 = json!({"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0});
    let divisors = vec![1.5; 32];
    let long = json!({"type": "longrope", "short_factor": divisors, "long_factor": divisors});
    for (rope, absent) in [
        (&yarn, Some(131_072.0)),
        (&llama3, None),
        (&long, Some(131_072.0)),
    ] {
        let of = |beside, among| {
            let config = with(config4(), &json!({"rope_scaling": rope}));
            places(config, beside, among)
        };
        if let Some(absent) = absent {
            assert_eq!(context(&of(None, None)), absent, "{rope}");
        }
        assert_eq!(context(&of(Some(64), None)), 64.0, "{rope}");
        assert_eq!(context(&of(None, Some(64))), 64.0, "{rope}");
        assert_eq!(context(&of(Some(64), Some(64))), 64.0, "{rope}");
        let error = refused("config.json", &of(Some(32), Some(64)));
        let expected = format!("`rope_scaling.{original}` is 64, expected 32, as beside these");
        assert!(error.contains(&expected), "{error}");
    }

    // Phi-3's class has a default, which an absent key means; and `yarn` was a name of longrope.
    for name in ["longrope", "su", "yarn"] {
        let phi = |beside, among| {
            let rope = with(long.clone(), &json!({"type": name}));
            let rope = json!({"head_dim": 64, "rope_scaling": rope});
            places(of_family("phi3", "Phi3ForCausalLM", &rope), beside, among)
        };
        assert_eq!(context(&phi(None, None)), 4096.0);
        assert_eq!(context(&phi(Some(64), None)), 64.0);
        let error = refused("config.json", &phi(None, Some(64)));
        let expected = format!("`rope_scaling.{original}` is 64, expected 4096, which is meant");
        assert!(error.contains(&expected), "{error}");
    }
}

/// A configuration of a family, with nothing that has a default.
fn of_family(model_type: &str, class: &str, changes: &Value) -> Value {
    let names = json!({"model_type": model_type, "architectures": [class]});
    let mut config = with(config4(), &names);
    for key in [
        "num_key_value_heads",
        "head_dim",
        "rope_scaling",
        "rope_theta",
        "tie_word_embeddings",
        "attention_bias",
        "mlp_bias",
    ] {
        config.as_object_mut().unwrap().remove(key);
    }
    with(config, changes)
}

#[test]
fn layers_that_do_not_rotate() {
    let of = |changes: Value| of_family("smollm3", "SmolLM3ForCausalLM", &changes);
    let config = read("config.json", &of(json!({}))).unwrap();
    assert_eq!(
        (
            config.rope_theta,
            config.tied_embeddings,
            config.shape.n_kv_heads
        ),
        (2e6, true, 4)
    );
    let never = |changes: Value| {
        let config = read("config.json", &of(changes)).unwrap();
        let layers = 0..config.shape.n_layers;
        let never = layers.filter(|&n| config.rotation(n) == Rotation::Never);
        (never.collect::<Vec<_>>(), config)
    };
    assert_eq!(never(json!({})).0, [3, 7, 11, 15]);
    assert_eq!(never(json!({"no_rope_layer_interval": 7})).0, [6, 13]);
    let mut listed = vec![1; 20];
    (listed[0], listed[9], listed[17]) = (0, 0, 0);
    let windows =
        json!({"no_rope_layers": listed, "use_sliding_window": true, "sliding_window": 5});
    let (layers, config) = never(windows);
    assert_eq!(layers, [0, 9]);
    let with_window: Vec<_> = (0..16).filter(|&n| config.window(n) == Some(5)).collect();
    assert_eq!(with_window, [0, 9]);
    for listed in [json!(vec![1; 15]), json!(vec![2; 16]), json!(7)] {
        let error = refused("config.json", &of(json!({"no_rope_layers": listed})));
        assert!(error.contains("at least 16 times 0 or 1"), "{error}");
    }
    let error = refused("config.json", &of(json!({"no_rope_layer_interval": 0})));
    assert!(error.contains("an integer from 1"), "{error}");
}

#[test]
fn biases_and_defaults_of_later_families() {
    let biases = |model_type: &str, class: &str, changes: Value| {
        let config = read("config.json", &of_family(model_type, class, &changes)).unwrap();
        let Biases { qkv, o, mlp } = config.biases;
        ([qkv, o, mlp], config)
    };
    let seed = |changes| biases("seed_oss", "SeedOssForCausalLM", changes);
    let (has, config) = seed(json!({}));
    assert_eq!((has, config.rope_theta), ([true, false, false], 10_000.0));
    assert_eq!((config.shape.n_kv_heads, config.shape.head_dim), (8, 128));
    let others = json!({"attention_bias": false, "attention_out_bias": true, "mlp_bias": true});
    assert_eq!(seed(others).0, [false, true, true]);
    let ernie = |changes| biases("ernie4_5", "Ernie4_5ForCausalLM", changes);
    let (has, config) = ernie(json!({}));
    assert_eq!((has, config.rope_theta), ([false; 3], 500_000.0));
    assert_eq!((config.shape.n_kv_heads, config.tied_embeddings), (2, true));
    assert_eq!(ernie(json!({"use_bias": true})).0, [true; 3]);
}

#[test]
fn a_theta_by_alpha() {
    let of = |rope: Value| {
        let changes = json!({"head_dim": 64, "rope_scaling": rope});
        of_family("hunyuan_v1_dense", "HunYuanDenseV1ForCausalLM", &changes)
    };
    let rope = json!({"type": "dynamic", "alpha": 1000.0, "factor": 1.0});
    let config = read("config.json", &of(rope)).unwrap();
    let theta = 10_000.0 * f64::powf(1000.0, 64.0 / 62.0);
    assert_eq!(
        (config.rope_theta, config.rope_scaling.clone()),
        (theta, RopeScaling::None)
    );
    assert_eq!(config.rotation(0), Rotation::BeforeNorms);
    let rope = json!({"type": "dynamic", "alpha": 1000.0, "factor": 2.0});
    let error = refused("config.json", &of(rope));
    assert!(error.contains("expected 1 beside alpha"), "{error}");
    // In other families the key means nothing, as in transformers.
    let rope = json!({"type": "dynamic", "alpha": 1000.0, "factor": 2.0});
    let llama = with(config4(), &json!({"rope_scaling": rope}));
    let config = read("config.json", &llama).unwrap();
    assert!(matches!(config.rope_scaling, RopeScaling::Dynamic { .. }));
}

#[test]
fn q_grows_with_its_position() {
    let of = |rope: Value| {
        let changes = json!({"rope_parameters": rope});
        of_family("ministral3", "Ministral3ForCausalLM", &changes)
    };
    let rope = json!({"rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0,
        "original_max_position_embeddings": 100, "llama_4_scaling_beta": 0.1});
    let config = read("config.json", &of(rope.clone())).unwrap();
    assert!(!config.needs(100).q_scale && config.needs(101).q_scale);
    assert!(rope::table(&config, 100).unwrap().q_scale.is_empty());
    let table = rope::table(&config, 301).unwrap();
    let bytes = 4 * (table.cos.len() + table.sin.len() + 301);
    assert_eq!(rope::table_bytes(&config, 301), bytes as u64);
    for (position, times) in [(0, 0), (99, 0), (100, 1), (199, 1), (200, 2), (300, 3)] {
        let want = 1.0 + 0.1 * f64::from(1 + times).ln();
        assert_eq!(table.q_scale[position], want as f32, "{position}");
    }
    let error = refused("config.json", &of(Value::Null));
    assert!(error.contains("`rope_parameters` is null"), "{error}");
    let mut without = rope;
    without
        .as_object_mut()
        .unwrap()
        .remove("llama_4_scaling_beta");
    let error = refused("config.json", &of(without));
    assert!(
        error.contains("llama_4_scaling_beta` is missing"),
        "{error}"
    );
}

#[test]
fn a_table_that_cannot_be_had() {
    let config = read("config.json", &config4()).unwrap();
    let result = rope::table(&config, usize::MAX / 4);
    assert!(matches!(result, Err(Error::Refused { .. })));
}
