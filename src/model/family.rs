//! The families of models that run here: what each of them has that Llama has not, as data.
//!
//! Everything else reads this table; nothing asks for a family's name. A family that does not fit
//! into it (other activations, norms in other places, experts) is refused by its `model_type`.
//! Source of every entry: the family's configuration and modelling files in transformers 5.24.

use crate::backend::Rotation;

/// What a family's configuration means and what its layers have.
#[derive(Clone, Debug, PartialEq)]
pub struct Family {
    /// Hugging Face's `model_type`.
    pub model_type: &'static str,
    /// The only class that `architectures` may name.
    pub architecture: &'static str,
    /// Which products have biases: q, k and v; o; gate, up and down.
    pub biases: [Bias; 3],
    /// The modules of the norms of the heads of q and k, where these are normalised.
    pub head_norms: Option<[&'static str; 2]>,
    /// When layers rotate the heads of q and k.
    pub rotation: Rotation,
    /// Whether RoPE rotates neighbours in Hugging Face's files too, not halves.
    pub interleaved: bool,
    /// Whether some layers do not rotate: those that `no_rope_layers` names with 0, without it each
    /// of the number `no_rope_layer_interval`.
    pub unrotated: bool,
    /// Whether RoPE's type `dynamic` means a greater theta at all lengths, by the key `alpha`.
    pub rope_alpha: bool,
    /// Whether RoPE's type `yarn` is an old name of longrope.
    pub yarn_is_longrope: bool,
    /// Whether RoPE's keys say how q grows with its position (`llama_4_scaling_beta`).
    pub q_scale: bool,
    /// Whether q, k, v lie in one stored tensor, and gate, up in another.
    pub fused: bool,
    /// Which layers see a window of keys only.
    pub window: Window,
    /// Whether embedding, residual, attention and logits have multipliers.
    pub multipliers: bool,
    /// Whether a part of each head may be left without rotation.
    pub partial_rotation: bool,
    /// What an absent key means. (A key that is `null` is another thing.)
    pub absent: Absent,
}

/// Whether a product has a bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bias {
    /// No.
    Never,
    /// Yes.
    Always,
    /// As this key says; and what its absence means.
    Key(&'static str, bool),
}

/// Which layers see a window of keys only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// None; the key `sliding_window` is refused.
    None,
    /// All, where `sliding_window` is a number.
    All,
    /// Where `use_sliding_window` is true: those that `layer_types` names, without it those from
    /// `max_window_layers` on.
    Layers,
    /// As [`Window::Layers`], but without `layer_types` those that do not rotate.
    Unrotated,
}

/// The defaults of a family's configuration class.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Absent {
    /// `num_key_value_heads`; `None`: as many as query heads.
    pub n_kv_heads: Option<usize>,
    /// `head_dim`; `None`: width / heads.
    pub head_dim: Option<usize>,
    /// `sliding_window`.
    pub window: Option<usize>,
    /// `max_window_layers`.
    pub max_window_layers: usize,
    /// `rope_theta`.
    pub theta: f64,
    /// `original_max_position_embeddings` beside the RoPE keys; `None`: what is among them.
    pub original_context: Option<usize>,
    /// `tie_word_embeddings`.
    pub tied: bool,
}

const NOTHING: Absent = Absent {
    n_kv_heads: None,
    head_dim: None,
    window: None,
    max_window_layers: 28,
    theta: 10_000.0,
    original_context: None,
    tied: false,
};

const ATTENTION: Bias = Bias::Key("attention_bias", false);
const MLP: Bias = Bias::Key("mlp_bias", false);

/// Llama, and what shares its code.
pub const LLAMA: Family = Family {
    model_type: "llama",
    architecture: "LlamaForCausalLM",
    biases: [ATTENTION, ATTENTION, MLP],
    head_norms: None,
    rotation: Rotation::AfterNorms,
    interleaved: false,
    unrotated: false,
    rope_alpha: false,
    yarn_is_longrope: false,
    q_scale: false,
    fused: false,
    window: Window::None,
    multipliers: false,
    partial_rotation: false,
    absent: NOTHING,
};

/// All families.
pub static FAMILIES: [Family; 11] = [
    LLAMA,
    Family {
        model_type: "mistral",
        architecture: "MistralForCausalLM",
        biases: [Bias::Never; 3],
        window: Window::All,
        absent: Absent {
            n_kv_heads: Some(8),
            window: Some(4096),
            ..NOTHING
        },
        ..LLAMA
    },
    Family {
        model_type: "qwen2",
        architecture: "Qwen2ForCausalLM",
        biases: [Bias::Always, Bias::Never, Bias::Never],
        window: Window::Layers,
        absent: Absent {
            n_kv_heads: Some(32),
            window: Some(4096),
            ..NOTHING
        },
        ..LLAMA
    },
    Family {
        model_type: "qwen3",
        architecture: "Qwen3ForCausalLM",
        biases: [ATTENTION, ATTENTION, Bias::Never],
        head_norms: Some(["self_attn.q_norm", "self_attn.k_norm"]),
        window: Window::Layers,
        absent: Absent {
            n_kv_heads: Some(32),
            head_dim: Some(128),
            window: Some(4096),
            ..NOTHING
        },
        ..LLAMA
    },
    Family {
        model_type: "phi3",
        architecture: "Phi3ForCausalLM",
        biases: [Bias::Never; 3],
        yarn_is_longrope: true,
        fused: true,
        window: Window::All,
        partial_rotation: true,
        absent: Absent {
            original_context: Some(4096),
            ..NOTHING
        },
        ..LLAMA
    },
    Family {
        model_type: "granite",
        architecture: "GraniteForCausalLM",
        multipliers: true,
        ..LLAMA
    },
    Family {
        model_type: "smollm3",
        architecture: "SmolLM3ForCausalLM",
        unrotated: true,
        window: Window::Unrotated,
        absent: Absent {
            n_kv_heads: Some(4),
            theta: 2e6,
            tied: true,
            ..NOTHING
        },
        ..LLAMA
    },
    Family {
        model_type: "ernie4_5",
        architecture: "Ernie4_5ForCausalLM",
        biases: [Bias::Key("use_bias", false); 3],
        interleaved: true,
        absent: Absent {
            n_kv_heads: Some(2),
            head_dim: Some(128),
            theta: 5e5,
            tied: true,
            ..NOTHING
        },
        ..LLAMA
    },
    Family {
        model_type: "hunyuan_v1_dense",
        architecture: "HunYuanDenseV1ForCausalLM",
        biases: [ATTENTION, ATTENTION, Bias::Never],
        head_norms: Some(["self_attn.query_layernorm", "self_attn.key_layernorm"]),
        rotation: Rotation::BeforeNorms,
        rope_alpha: true,
        ..LLAMA
    },
    Family {
        model_type: "seed_oss",
        architecture: "SeedOssForCausalLM",
        biases: [
            Bias::Key("attention_bias", true),
            Bias::Key("attention_out_bias", false),
            MLP,
        ],
        absent: Absent {
            n_kv_heads: Some(8),
            head_dim: Some(128),
            ..NOTHING
        },
        ..LLAMA
    },
    Family {
        model_type: "ministral3",
        architecture: "Ministral3ForCausalLM",
        biases: [Bias::Never; 3],
        q_scale: true,
        window: Window::All,
        absent: Absent {
            n_kv_heads: Some(8),
            head_dim: Some(128),
            ..NOTHING
        },
        ..LLAMA
    },
];

impl Family {
    /// The family of a `model_type`.
    pub fn named(model_type: &str) -> Option<&'static Family> {
        FAMILIES.iter().find(|f| f.model_type == model_type)
    }

    /// All names, for messages.
    pub fn names() -> String {
        FAMILIES.each_ref().map(|f| f.model_type).join(", ")
    }
}
