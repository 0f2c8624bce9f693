//! Where a model comes from: the binary itself, or a path. One answer for weights, tokenizer, prompt texts and
//! sampling defaults, so that no command mixes two sources.

use crate::display::spinner;
use crate::embedded::{EmbeddedModel, embedded_model};
use crate::failure::{bad_input, one_line};
use crate::input::check_model_file;
use crate::sampling::GenerationDefaults;
use overshot_chat::{PromptTexts, Special, Tokenizer};
use overshot_model::{Bytes, Model, Spec};
use std::path::{Path, PathBuf};

/// Several times what the published files have (6 MB, 60 kB, 200 B).
const TOKENIZER_BYTES_MAX: u64 = 256 << 20;
const PROMPTS_BYTES_MAX: u64 = 16 << 20;
const GENERATION_CONFIG_BYTES_MAX: u64 = 1 << 20;

/// Of random weights: every run has the same.
const SEED: u64 = 1;

const FILES_BESIDE_WEIGHTS: [&str; 7] = [
    "config.json",
    "model.safetensors.index.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "encoding/prompts.json",
    "encoding/encoding_dsv4.py",
];

#[derive(Clone)]
pub enum ModelSource {
    BuiltIn(&'static EmbeddedModel),
    Path(PathBuf),
    /// Of this shape, over random weights: to be measured, not to answer.
    Random {
        name: String,
        spec: Box<Spec>,
    },
}

impl ModelSource {
    /// # Errors
    /// No path, and a binary that was built without a model.
    pub fn from_flag(path: Option<&Path>) -> anyhow::Result<Self> {
        match (path, embedded_model()) {
            (Some(path), _) => Ok(ModelSource::Path(path.to_path_buf())),
            (None, Some(model)) => Ok(ModelSource::BuiltIn(model)),
            (None, None) => {
                Err(bad_input("this binary has no built-in model: name a checkpoint with --model PATH"))
            }
        }
    }

    /// For people: the name of the built-in model, or the path.
    pub fn label(&self) -> String {
        match self {
            ModelSource::BuiltIn(model) => format!("{} (built in)", model.name),
            ModelSource::Path(path) => path.display().to_string(),
            ModelSource::Random { name, .. } => name.clone(),
        }
    }

    /// The files that an opened model is made of, and those that may stand beside them.
    pub fn files(&self, model: &Model) -> Vec<PathBuf> {
        let ModelSource::Path(path) = self else { return Vec::new() };
        let weights = model.summary.files.iter().filter_map(|file| Path::new(&file.path).file_name());
        let mut files: Vec<PathBuf> = weights.map(|name| folder(model).join(name)).collect();
        files.extend(FILES_BESIDE_WEIGHTS.iter().map(|name| folder(model).join(name)));
        files.push(path.clone());
        files
    }

    /// Opens the model, with a spinner on a terminal.
    pub fn open(&self) -> anyhow::Result<Model> {
        let waiting = spinner(&format!("opening {}", one_line(&self.label())));
        let model = match self {
            ModelSource::BuiltIn(model) => Model::from_parts(model.config, Bytes::from_static(model.weights)),
            ModelSource::Path(path) => Model::open(path),
            ModelSource::Random { spec, .. } => Ok(Model::random(spec.as_ref().clone(), SEED)),
        };
        waiting.finish_and_clear();
        Ok(model?)
    }

    /// The tokenizer of an opened model.
    ///
    /// # Errors
    /// A tokenizer that is missing, broken, or belongs to another model.
    pub fn tokenizer(&self, model: &Model) -> anyhow::Result<Tokenizer> {
        let tokenizer = match self {
            ModelSource::BuiltIn(built_in) => {
                Tokenizer::from_bytes(built_in.tokenizer.as_bytes(), "tokenizer.json")?
            }
            ModelSource::Path(_) => {
                let path = folder(model).join("tokenizer.json");
                check_model_file(&path, TOKENIZER_BYTES_MAX)?;
                Tokenizer::from_file(&path)?
            }
            ModelSource::Random { .. } => return Err(bad_input("random weights have no tokenizer")),
        };
        if let Some(difference) = difference(&tokenizer, &model.spec) {
            let label = self.label();
            return Err(bad_input(format!(
                "the tokenizer of {label} belongs to another model: {difference}"
            )));
        }
        Ok(tokenizer)
    }

    /// The fixed texts of an opened model's prompts.
    pub fn prompt_texts(&self, model: &Model) -> anyhow::Result<PromptTexts> {
        Ok(match self {
            ModelSource::BuiltIn(built_in) => {
                PromptTexts::from_json(built_in.prompts, "encoding/prompts.json")?
            }
            ModelSource::Path(_) => {
                for file in ["encoding/prompts.json", "encoding/encoding_dsv4.py"] {
                    check_model_file(&folder(model).join(file), PROMPTS_BYTES_MAX)?;
                }
                PromptTexts::from_model_folder(folder(model))?
            }
            ModelSource::Random { .. } => return Err(bad_input("random weights have no texts of prompts")),
        })
    }

    /// The sampling defaults of an opened model; the publisher's where it brings none.
    pub fn generation_defaults(&self, model: &Model) -> anyhow::Result<GenerationDefaults> {
        if let ModelSource::BuiltIn(built_in) = self {
            return GenerationDefaults::parse(built_in.generation_config, "generation_config.json");
        }
        let path = folder(model).join("generation_config.json");
        check_model_file(&path, GENERATION_CONFIG_BYTES_MAX)?;
        match std::fs::read_to_string(&path) {
            Ok(text) => GenerationDefaults::parse(&text, &path.display().to_string()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(GenerationDefaults::default()),
            Err(error) => Err(bad_input(format!("cannot read {}: {error}", path.display()))),
        }
    }
}

/// What a tokenizer and a model cannot disagree on; `None` when they fit.
fn difference(tokenizer: &Tokenizer, spec: &Spec) -> Option<String> {
    let (tokens, most) = (tokenizer.vocabulary_size(), spec.vocab_size);
    if tokens > most {
        return Some(format!("it has {tokens} tokens where the model has {most}"));
    }
    for (special, name, expected) in [
        (Special::BeginOfSentence, "bos_token_id", spec.bos_token),
        (Special::EndOfSentence, "eos_token_id", spec.eos_token),
    ] {
        match tokenizer.special_id(special) {
            Some(id) if id == expected => {}
            found => {
                let (token, id) = (special.text(), found.map_or("missing".to_owned(), |id| id.to_string()));
                return Some(format!("the id of {token} is {id} where the model's {name} is {expected}"));
            }
        }
    }
    None
}

fn folder(model: &Model) -> &Path {
    model.folder.as_deref().unwrap_or(Path::new("."))
}
