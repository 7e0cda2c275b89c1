//! The arguments about the model of the built-in agent.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use narrows_model::{Effort, Provider};

use super::value;
use crate::config::{EndpointSettings, Header, Key, Proxy};

const MODEL_HEADING: &str = "Model of the built-in agent";

/// Model, endpoint and request settings. Each overrides a setting of `narrows.toml`.
#[derive(Args, Clone, Debug, Default, PartialEq)]
#[command(next_help_heading = MODEL_HEADING)]
pub(crate) struct ModelArgs {
    /// Configuration file [default: narrows/narrows.toml in your configuration directory]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// Endpoint of the configuration file
    #[arg(long, value_name = "NAME")]
    pub(crate) endpoint: Option<String>,

    /// Base URL of the endpoint; `builtin:demo` is a demo model that needs no key or network
    #[arg(long, value_name = "URL")]
    pub(crate) base_url: Option<String>,

    /// Model id
    #[arg(long, value_name = "ID", value_parser = value::model)]
    pub(crate) model: Option<String>,

    /// Environment variable that holds the API key
    #[arg(long, value_name = "VARIABLE", value_parser = value::variable_name)]
    pub(crate) key_env: Option<String>,

    /// System prompt
    #[arg(long, value_name = "TEXT", hide_short_help = true)]
    pub(crate) system: Option<String>,

    /// Extra request header; other users of this machine can see it in the process list
    #[arg(long, value_name = "NAME: VALUE", value_parser = value::header, hide_short_help = true)]
    pub(crate) header: Vec<Header>,

    /// Extra URL parameter, such as `api-version=2024-10-21`
    #[arg(long, value_name = "NAME=VALUE", value_parser = value::query, hide_short_help = true)]
    pub(crate) query: Vec<(String, String)>,

    /// Provider of the endpoint, if the URL does not identify it
    #[arg(long, value_name = "NAME", value_parser = value::provider(), hide_possible_values = true, hide_short_help = true)]
    pub(crate) provider: Option<Provider>,

    /// Context window of the model in tokens [default: from the endpoint]
    #[arg(long, value_name = "TOKENS", value_parser = value::tokens, hide_short_help = true)]
    pub(crate) context_window: Option<u64>,

    /// Maximum number of tokens of an answer
    #[arg(long, value_name = "TOKENS", value_parser = value::tokens, hide_short_help = true)]
    pub(crate) max_tokens: Option<u64>,

    /// Sampling temperature, usually 0 to 2
    #[arg(long, value_name = "NUMBER", value_parser = value::temperature, allow_negative_numbers = true, hide_short_help = true)]
    pub(crate) temperature: Option<f64>,

    /// Reasoning effort: minimal, low, medium or high
    #[arg(long, value_name = "EFFORT", value_parser = value::effort(), hide_possible_values = true, hide_short_help = true)]
    pub(crate) effort: Option<Effort>,

    /// PEM file with CA certificates to trust in addition to those of the system
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub(crate) ca_file: Option<PathBuf>,

    /// Proxy for the endpoint, or `none` [default: from the proxy environment variables]
    #[arg(long, value_name = "URL", value_parser = value::proxy, hide_short_help = true)]
    pub(crate) proxy: Option<Proxy>,

    /// Time limit for connecting [default: 10s]
    #[arg(long, value_name = "TIME", value_parser = value::duration, hide_short_help = true)]
    pub(crate) connect_timeout: Option<Duration>,

    /// Time limit for the first token [default: 5m]
    #[arg(long, value_name = "TIME", value_parser = value::duration, hide_short_help = true)]
    pub(crate) first_timeout: Option<Duration>,

    /// Time limit for a pause after the first token [default: 2m]
    #[arg(long, value_name = "TIME", value_parser = value::duration, hide_short_help = true)]
    pub(crate) idle_timeout: Option<Duration>,

    /// Time limit for a whole answer [default: 1h]
    #[arg(long, value_name = "TIME", value_parser = value::duration, hide_short_help = true)]
    pub(crate) total_timeout: Option<Duration>,

    /// Delay of the demo model before each word; `0` disables
    #[arg(long, value_name = "TIME", value_parser = value::pace, hide_short_help = true)]
    pub(crate) pace: Option<Duration>,
}

impl ModelArgs {
    /// Returns the endpoint settings of the arguments.
    pub(crate) fn endpoint_settings(&self) -> EndpointSettings {
        EndpointSettings {
            base_url: self.base_url.clone(),
            key: self.key_env.clone().map(Key::Variable),
            model: self.model.clone(),
            headers: self.header.clone(),
            query: self.query.clone(),
            provider: self.provider,
            context_window: self.context_window,
            ca_file: self.ca_file.clone(),
            proxy: self.proxy.clone(),
            max_tokens: self.max_tokens,
            temperature: self.temperature,
            effort: self.effort,
            connect_timeout: self.connect_timeout,
            first_timeout: self.first_timeout,
            idle_timeout: self.idle_timeout,
            total_timeout: self.total_timeout,
        }
    }

    /// Returns these settings as arguments for another `narrows` process. Paths are made absolute, because
    /// the other process may run in another directory.
    pub(crate) fn words(&self) -> std::io::Result<Vec<OsString>> {
        let path = |path: &Option<PathBuf>| path.as_deref().map(absolute).transpose();
        let time = |time: Option<Duration>| {
            // A duration below a millisecond must not become zero, because zero disables a timeout.
            time.map(|time| format!("{}ms", time.as_millis().max(u128::from(!time.is_zero()))))
        };
        let mut words = FlagWords(Vec::new());
        words.add("--config", path(&self.config)?);
        words.add("--endpoint", self.endpoint.as_ref());
        words.add("--base-url", self.base_url.as_ref());
        words.add("--model", self.model.as_ref());
        words.add("--key-env", self.key_env.as_ref());
        words.add("--system", self.system.as_ref());
        let header = |header: &Header| format!("{}: {}", header.name, header.value.reveal());
        words.add("--header", self.header.iter().map(header));
        words.add("--query", self.query.iter().map(|(name, value)| format!("{name}={value}")));
        words.add("--provider", self.provider.map(Provider::name));
        words.add("--context-window", self.context_window.map(|tokens| tokens.to_string()));
        words.add("--max-tokens", self.max_tokens.map(|tokens| tokens.to_string()));
        words.add("--temperature", self.temperature.map(|number| number.to_string()));
        words.add("--effort", self.effort.map(Effort::name));
        words.add("--ca-file", path(&self.ca_file)?);
        words.add(
            "--proxy",
            self.proxy.as_ref().map(|proxy| match proxy {
                Proxy::None => "none",
                Proxy::Through(url) => url,
            }),
        );
        words.add("--connect-timeout", time(self.connect_timeout));
        words.add("--first-timeout", time(self.first_timeout));
        words.add("--idle-timeout", time(self.idle_timeout));
        words.add("--total-timeout", time(self.total_timeout));
        words.add("--pace", time(self.pace));
        Ok(words.0)
    }
}

fn absolute(path: &Path) -> std::io::Result<PathBuf> {
    std::path::absolute(path)
}

/// Arguments of the form `--FLAG=VALUE`, so that a value may begin with a dash.
struct FlagWords(Vec<OsString>);

impl FlagWords {
    fn add<V: Into<OsString>>(&mut self, flag: &str, values: impl IntoIterator<Item = V>) {
        for value in values {
            let mut word = OsString::from(flag);
            word.push("=");
            word.push(value.into());
            self.0.push(word);
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use proptest::prelude::*;

    use super::*;

    #[derive(Parser)]
    struct Alone {
        #[command(flatten)]
        model: ModelArgs,
    }

    fn reparsed(args: &ModelArgs) -> ModelArgs {
        let words = args.words().expect("a working directory");
        let first = std::iter::once(OsString::from("narrows"));
        Alone::try_parse_from(first.chain(words)).unwrap_or_else(|error| panic!("{error}")).model
    }

    fn text() -> impl Strategy<Value = Option<String>> {
        proptest::option::of("\\PC{1,20}")
    }

    fn time() -> impl Strategy<Value = Option<Duration>> {
        proptest::option::of((1..31_536_000_000u64).prop_map(Duration::from_millis))
    }

    prop_compose! {
        fn texts()(
            (endpoint, base_url, model, system) in (text(), text(), text(), text()),
            key_env in proptest::option::of("[A-Z_]{1,20}"),
            header in proptest::collection::vec(("[A-Za-z-]{1,9}", "[!-~]{0,9}"), 0..3),
            query in proptest::collection::vec(("[a-z-]{1,9}", "\\PC{0,9}"), 0..3),
            (config, ca_file) in (proptest::option::of("/[a-z]{1,9}"), proptest::option::of("/[a-z]{1,9}")),
            proxy in proptest::option::of("[!-~]{1,9}"),
        ) -> ModelArgs {
            ModelArgs {
                config: config.map(Into::into),
                endpoint,
                base_url,
                model,
                key_env,
                system,
                header: header.into_iter().map(|(name, value)| Header { name, value: value.into() }).collect(),
                query,
                ca_file: ca_file.map(Into::into),
                proxy: proxy.map(Proxy::from),
                ..ModelArgs::default()
            }
        }
    }

    prop_compose! {
        fn args()(
            texts in texts(),
            provider in proptest::option::of(proptest::sample::select(Provider::all().collect::<Vec<_>>())),
            effort in proptest::option::of(proptest::sample::select(Effort::ALL.to_vec())),
            tokens in (proptest::option::of(1..=u64::MAX), proptest::option::of(1..=u64::MAX)),
            temperature in proptest::option::of(0.0..1e6f64),
            times in (time(), time(), time(), time()),
            pace in proptest::option::of((0..1000u64).prop_map(Duration::from_millis)),
        ) -> ModelArgs {
            ModelArgs {
                provider,
                context_window: tokens.0,
                max_tokens: tokens.1,
                temperature,
                effort,
                connect_timeout: times.0,
                first_timeout: times.1,
                idle_timeout: times.2,
                total_timeout: times.3,
                pace,
                ..texts
            }
        }
    }

    proptest! {
        #[test]
        fn words_parse_to_the_same_arguments(args in args()) {
            prop_assert_eq!(reparsed(&args), args);
        }
    }

    #[test]
    fn paths_are_made_absolute() {
        let args = ModelArgs { ca_file: Some("ca.pem".into()), ..ModelArgs::default() };
        let expected = std::env::current_dir().unwrap().join("ca.pem");
        assert_eq!(reparsed(&args).ca_file, Some(expected));
    }
}
