//! Bytes of KV cache a token, for models whose configuration is public.

/// A model, with what its published configuration says about its attention.
#[derive(Clone, Copy, Debug)]
pub(super) struct Model {
    /// Its name for `--model`, in small letters.
    pub(super) name: &'static str,
    layers: u64,
    kept: Kept,
}

/// What a layer keeps of a token.
#[derive(Clone, Copy, Debug)]
enum Kept {
    /// A key and a value for each KV head (grouped-query attention, arXiv 2305.13245).
    Heads { kv_heads: u64, head_size: u64 },
    /// One compressed vector and the rotary part of the key, for all heads (multi-head latent attention, arXiv
    /// 2405.04434).
    Latent { rank: u64, rotary: u64 },
}

/// Bytes of a number: models are served with a KV cache of 16 bits unless it is quantised.
const ELEMENT_BYTES: u64 = 2;

const fn heads(name: &'static str, layers: u64, kv_heads: u64, head_size: u64) -> Model {
    let kept = Kept::Heads {
        kv_heads,
        head_size,
    };
    Model { name, layers, kept }
}

const fn latent(name: &'static str, layers: u64, rank: u64, rotary: u64) -> Model {
    let kept = Kept::Latent { rank, rotary };
    Model { name, layers, kept }
}

/// The models, by `num_hidden_layers`, `num_key_value_heads` and `head_dim` of the config.json that each was published with;
/// `kv_lora_rank` and `qk_rope_head_dim` where attention is latent.
pub(super) const MODELS: &[Model] = &[
    heads("llama-3.2-1b", 16, 8, 64),
    heads("llama-3.2-3b", 28, 8, 128),
    heads("llama-3.1-8b", 32, 8, 128),
    heads("llama-3.1-70b", 80, 8, 128),
    heads("llama-3.1-405b", 126, 8, 128),
    heads("qwen2.5-7b", 28, 4, 128),
    heads("qwen2.5-14b", 48, 8, 128),
    heads("qwen2.5-32b", 64, 8, 128),
    heads("qwen2.5-72b", 80, 8, 128),
    heads("qwen3-8b", 36, 8, 128),
    heads("qwen3-14b", 40, 8, 128),
    heads("qwen3-32b", 64, 8, 128),
    heads("qwen3-30b-a3b", 48, 4, 128),
    heads("qwen3-235b-a22b", 94, 4, 128),
    heads("mistral-7b-v0.3", 32, 8, 128),
    heads("mistral-nemo-12b", 40, 8, 128),
    heads("mixtral-8x7b", 32, 8, 128),
    heads("mixtral-8x22b", 56, 8, 128),
    heads("yi-34b", 60, 8, 128),
    latent("deepseek-v3", 61, 512, 64),
    latent("deepseek-r1", 61, 512, 64),
    latent("kimi-k2", 61, 512, 64),
];

impl Model {
    /// The model of this name.
    pub(super) fn find(name: &str) -> Option<&'static Self> {
        MODELS
            .iter()
            .find(|model| model.name == name.to_lowercase())
    }

    /// Bytes of one token in all layers, on all machines that share the model.
    pub(super) fn kv_bytes_per_token(&self) -> u64 {
        let numbers = match self.kept {
            Kept::Heads {
                kv_heads,
                head_size,
            } => 2 * kv_heads * head_size,
            Kept::Latent { rank, rotary } => rank + rotary,
        };
        self.layers * numbers * ELEMENT_BYTES
    }

    /// How the figure comes about.
    pub(super) fn source(&self) -> String {
        let layers = self.layers;
        let kept = match self.kept {
            Kept::Heads {
                kv_heads,
                head_size,
            } => {
                format!("2 (key and value) × {kv_heads} KV heads × head size {head_size}")
            }
            Kept::Latent { rank, rotary } => format!("(latent rank {rank} + rotary size {rotary})"),
        };
        format!(
            "{layers} layers × {kept} × {ELEMENT_BYTES} bytes, from the published config.json of {}",
            self.name
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_follow_from_the_configuration() {
        let check = |name: &str, bytes: u64| {
            assert_eq!(
                Model::find(name).unwrap().kv_bytes_per_token(),
                bytes,
                "{name}"
            );
        };
        check("llama-3.1-8b", 128 << 10);
        check("Llama-3.1-70B", 320 << 10);
        check("llama-3.1-405b", 504 << 10);
        check("qwen2.5-7b", 56 << 10);
        check("deepseek-v3", 61 * 576 * 2);
        assert!(Model::find("gpt").is_none());
    }

    #[test]
    fn names_are_written_small_and_stand_once() {
        for (index, model) in MODELS.iter().enumerate() {
            assert_eq!(model.name, model.name.to_lowercase());
            assert!(
                MODELS[..index].iter().all(|other| other.name != model.name),
                "{}",
                model.name
            );
            assert!(model.source().contains(&format!("{} layers", model.layers)));
        }
    }
}
