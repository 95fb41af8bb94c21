//! The families of models that run here: what each of them has that Llama has not, as data.
//!
//! Everything else reads this table; nothing asks for a family's name. A family that does not fit
//! into it (other activations, norms in other places, experts) is refused by its `model_type`.
//! Source of every entry: the family's configuration and modelling files in transformers 5.23.

/// What a family's configuration means and what its layers have.
#[derive(Clone, Debug, PartialEq)]
pub struct Family {
    /// Hugging Face's `model_type`.
    pub model_type: &'static str,
    /// The only class that `architectures` may name.
    pub architecture: &'static str,
    /// Which products have biases.
    pub bias: Bias,
    /// Whether each head of q and k is normalised before RoPE.
    pub head_norms: bool,
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

/// Which products have biases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bias {
    /// None.
    None,
    /// q, k and v.
    Qkv,
    /// q, k, v and o where `attention_bias` says so.
    Attention,
    /// As [`Bias::Attention`]; gate, up and down where `mlp_bias` says so.
    AttentionAndMlp,
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
}

/// The defaults of a family's configuration class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Absent {
    /// `num_key_value_heads`; `None`: as many as query heads.
    pub n_kv_heads: Option<usize>,
    /// `head_dim`; `None`: width / heads.
    pub head_dim: Option<usize>,
    /// `sliding_window`.
    pub window: Option<usize>,
    /// `max_window_layers`.
    pub max_window_layers: usize,
}

const NOTHING: Absent = Absent {
    n_kv_heads: None,
    head_dim: None,
    window: None,
    max_window_layers: 28,
};

/// Llama, and what shares its code.
pub const LLAMA: Family = Family {
    model_type: "llama",
    architecture: "LlamaForCausalLM",
    bias: Bias::AttentionAndMlp,
    head_norms: false,
    fused: false,
    window: Window::None,
    multipliers: false,
    partial_rotation: false,
    absent: NOTHING,
};

/// All families.
pub static FAMILIES: [Family; 6] = [
    LLAMA,
    Family {
        model_type: "mistral",
        architecture: "MistralForCausalLM",
        bias: Bias::None,
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
        bias: Bias::Qkv,
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
        bias: Bias::Attention,
        head_norms: true,
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
        bias: Bias::None,
        fused: true,
        window: Window::All,
        partial_rotation: true,
        ..LLAMA
    },
    Family {
        model_type: "granite",
        architecture: "GraniteForCausalLM",
        multipliers: true,
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
