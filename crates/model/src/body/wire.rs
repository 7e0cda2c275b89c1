//! The JSON format of requests.

use std::borrow::Cow;
use std::fmt;

use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};

/// The body of a request. Fields that stay the same during a conversation come first, for prefix caches.
#[derive(Serialize)]
pub(super) struct Body<'a> {
    pub(super) model: &'a str,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub(super) tools: Vec<Tool<'a>>,
    pub(super) messages: Vec<Message<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) stream: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) stream_options: Option<StreamOptions>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) max_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) max_completion_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) temperature: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reasoning_effort: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reasoning: Option<Reasoning>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) prompt_cache_key: Option<&'a str>,
}

#[derive(Serialize)]
pub(super) struct StreamOptions {
    pub(super) include_usage: bool,
}

#[derive(Serialize)]
pub(super) struct Reasoning {
    pub(super) effort: &'static str,
}

pub(super) struct Tool<'a>(pub(super) &'a crate::Tool);

impl Serialize for Tool<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Function<'a> {
            name: &'a str,
            #[serde(skip_serializing_if = "str::is_empty")]
            description: &'a str,
            parameters: Cow<'a, Value>,
        }
        let crate::Tool { name, description, parameters } = self.0;
        let parameters = object_schema(parameters);
        let mut tool = serializer.serialize_struct("Tool", 2)?;
        tool.serialize_field("type", "function")?;
        tool.serialize_field("function", &Function { name, description, parameters })?;
        tool.end()
    }
}

/// Completes a schema of arguments. Servers refuse a schema that is not of type object or has no properties.
fn object_schema(schema: &Value) -> Cow<'_, Value> {
    let Some(fields) = schema.as_object() else {
        return Cow::Owned(json!({ "type": "object", "properties": {} }));
    };
    let composed = ["anyOf", "oneOf", "allOf", "$ref"].iter().any(|word| fields.contains_key(*word));
    if composed || (fields.contains_key("type") && fields.contains_key("properties")) {
        return Cow::Borrowed(schema);
    }
    let mut fields = fields.clone();
    fields.entry("type").or_insert_with(|| "object".into());
    fields.entry("properties").or_insert_with(|| json!({}));
    Cow::Owned(Value::Object(fields))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Role {
    System,
    Developer,
    User,
    Assistant,
    Tool,
}

#[derive(Serialize)]
pub(super) struct Message<'a> {
    pub(super) role: Role,
    pub(super) content: Content<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reasoning_content: Option<&'a str>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub(super) tool_calls: Vec<Call<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tool_call_id: Option<Cow<'a, str>>,
    #[serde(flatten)]
    pub(super) extra: Option<&'a Map<String, Value>>,
}

impl<'a> Message<'a> {
    pub(super) fn new(role: Role, content: Content<'a>) -> Self {
        Self {
            role,
            content,
            reasoning_content: None,
            tool_calls: Vec::new(),
            tool_call_id: None,
            extra: None,
        }
    }
}

/// Content of a message. `Nothing` is sent as null, for a message that contains only calls.
#[derive(Clone, Serialize)]
#[serde(untagged)]
pub(super) enum Content<'a> {
    Nothing,
    Text(Cow<'a, str>),
    Parts(Vec<Part<'a>>),
}

impl<'a> Content<'a> {
    pub(super) fn into_parts(self) -> Vec<Part<'a>> {
        match self {
            Self::Nothing => Vec::new(),
            Self::Text(text) if text.is_empty() => Vec::new(),
            Self::Text(text) => vec![Part::text(text)],
            Self::Parts(parts) => parts,
        }
    }

    /// Appends `next`. Two texts become one text, anything else becomes a list of parts.
    pub(super) fn join(self, next: Self) -> Self {
        match (self, next) {
            (Self::Nothing, other) | (other, Self::Nothing) => other,
            (Self::Text(a), Self::Text(b)) => match (a.is_empty(), b.is_empty()) {
                (true, _) => Self::Text(b),
                (_, true) => Self::Text(a),
                _ => Self::Text(format!("{a}\n\n{b}").into()),
            },
            (a, b) => {
                let mut parts = a.into_parts();
                parts.extend(b.into_parts());
                Self::Parts(parts)
            }
        }
    }
}

/// A part of a message. May be marked as the end of a cacheable prefix.
#[derive(Clone)]
pub(super) struct Part<'a> {
    pub(super) kind: PartKind<'a>,
    pub(super) cached: bool,
}

#[derive(Clone)]
pub(super) enum PartKind<'a> {
    Text(Cow<'a, str>),
    Image { mime: &'a str, data: &'a str },
    Audio { format: &'static str, data: &'a str },
    File { name: &'a str, mime: &'a str, data: &'a str },
}

impl<'a> Part<'a> {
    pub(super) fn text(text: impl Into<Cow<'a, str>>) -> Self {
        PartKind::Text(text.into()).into()
    }
}

impl<'a> From<PartKind<'a>> for Part<'a> {
    fn from(kind: PartKind<'a>) -> Self {
        Self { kind, cached: false }
    }
}

impl Serialize for Part<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Audio<'a> {
            data: &'a str,
            format: &'static str,
        }
        #[derive(Serialize)]
        struct File<'a> {
            filename: &'a str,
            file_data: DataUrl<'a>,
        }
        let mut part = serializer.serialize_struct("Part", 2 + usize::from(self.cached))?;
        match &self.kind {
            PartKind::Text(text) => {
                part.serialize_field("type", "text")?;
                part.serialize_field("text", text)?;
            }
            PartKind::Image { mime, data } => {
                #[derive(Serialize)]
                struct Image<'a> {
                    url: DataUrl<'a>,
                }
                part.serialize_field("type", "image_url")?;
                part.serialize_field("image_url", &Image { url: DataUrl { mime, data } })?;
            }
            PartKind::Audio { format, data } => {
                part.serialize_field("type", "input_audio")?;
                part.serialize_field("input_audio", &Audio { data, format })?;
            }
            PartKind::File { name, mime, data } => {
                part.serialize_field("type", "file")?;
                let file = File { filename: name, file_data: DataUrl { mime, data } };
                part.serialize_field("file", &file)?;
            }
        }
        if self.cached {
            #[derive(Serialize)]
            struct CacheControl {
                r#type: &'static str,
            }
            part.serialize_field("cache_control", &CacheControl { r#type: "ephemeral" })?;
        }
        part.end()
    }
}

/// A data URL that is written to the output without a copy in memory.
struct DataUrl<'a> {
    mime: &'a str,
    data: &'a str,
}

impl fmt::Display for DataUrl<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "data:{};base64,{}", self.mime, self.data)
    }
}

impl Serialize for DataUrl<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[derive(Serialize)]
pub(super) struct Call<'a> {
    pub(super) id: Cow<'a, str>,
    pub(super) r#type: &'static str,
    pub(super) function: Called<'a>,
    #[serde(flatten)]
    pub(super) extra: Option<&'a Map<String, Value>>,
}

#[derive(Serialize)]
pub(super) struct Called<'a> {
    pub(super) name: &'a str,
    pub(super) arguments: Cow<'a, str>,
}
