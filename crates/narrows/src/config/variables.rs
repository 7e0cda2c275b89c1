//! Settings from environment variables, such as those of the endpoint `env`.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

use super::endpoint_settings::{EndpointSettings, Key};
use super::error::{ConfigError, Origin};
use crate::cli::value;
use crate::environment as env;

/// The environment variables. An empty variable counts as unset.
#[derive(Clone, Default)]
pub(crate) struct Variables {
    all: BTreeMap<OsString, OsString>,
}

impl Variables {
    pub(crate) fn of_process() -> Self {
        env::variables().collect()
    }

    pub(crate) fn get(&self, name: &str) -> Option<&OsStr> {
        let value = self.all.get(OsStr::new(name))?;
        (!value.is_empty()).then_some(value)
    }

    /// Returns the value of a variable. Fails if the value is not UTF-8.
    pub(crate) fn text(&self, name: &'static str) -> Result<Option<&str>, ConfigError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let text = value.to_str();
        text.map(Some).ok_or_else(|| ConfigError::new(Origin::variable(name), "the value is not UTF-8"))
    }

    pub(crate) fn read<T>(
        &self,
        name: &'static str,
        reading: impl FnOnce(&str) -> Result<T, &'static str>,
    ) -> Result<Option<T>, ConfigError> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        let value = reading(text);
        let shown: String = text.chars().take(40).collect();
        value.map(Some).map_err(|reason| {
            ConfigError::new(Origin::variable(name), format!("{shown:?} cannot be used: {reason}"))
                .hint(format!("correct or unset {name}"))
        })
    }

    pub(crate) fn endpoint_settings(&self) -> Result<EndpointSettings, ConfigError> {
        Ok(EndpointSettings {
            base_url: self.text(env::BASE_URL)?.map(str::to_owned),
            // The setting holds the name of the variable and not its value, so that an error can name the
            // variable.
            key: self.text(env::API_KEY)?.map(|_| Key::Variable(env::API_KEY.to_owned())),
            model: self.read(env::MODEL, value::model)?,
            max_tokens: self.read(env::MAX_TOKENS, value::tokens)?,
            temperature: self.read(env::TEMPERATURE, value::temperature)?,
            ..EndpointSettings::default()
        })
    }
}

impl FromIterator<(OsString, OsString)> for Variables {
    fn from_iter<I: IntoIterator<Item = (OsString, OsString)>>(variables: I) -> Self {
        Self { all: variables.into_iter().collect() }
    }
}

#[cfg(test)]
pub(super) fn variables(pairs: &[(&str, &str)]) -> Variables {
    pairs.iter().map(|(name, value)| (OsString::from(name), OsString::from(value))).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn invalid_numbers_are_reported_with_their_variable() {
        #[track_caller]
        fn check(name: &str, value: &str, expected: &str) {
            let error = variables(&[(name, value)]).endpoint_settings().expect_err(value);
            assert_eq!(error.to_string(), expected);
            assert_eq!(error.hint, Some(format!("correct or unset {name}")));
        }
        check(
            "OPENAI_MAX_TOKENS",
            "7x",
            "OPENAI_MAX_TOKENS: \"7x\" cannot be used: must be a whole number above 0",
        );
        check(
            "OPENAI_MAX_TOKENS",
            "0",
            "OPENAI_MAX_TOKENS: \"0\" cannot be used: must be a whole number above 0",
        );
        check(
            "OPENAI_MAX_TOKENS",
            "-1",
            "OPENAI_MAX_TOKENS: \"-1\" cannot be used: must be a whole number above 0",
        );
        check(
            "OPENAI_TEMPERATURE",
            "warm",
            "OPENAI_TEMPERATURE: \"warm\" cannot be used: must be a number, 0 or above",
        );
        check(
            "OPENAI_TEMPERATURE",
            "NaN",
            "OPENAI_TEMPERATURE: \"NaN\" cannot be used: must be a number, 0 or above",
        );
        check(
            "OPENAI_TEMPERATURE",
            "-0.1",
            "OPENAI_TEMPERATURE: \"-0.1\" cannot be used: must be a number, 0 or above",
        );
    }

    #[test]
    fn an_empty_variable_counts_as_unset() {
        let settings = variables(&[
            ("OPENAI_BASE_URL", ""),
            ("OPENAI_API_KEY", ""),
            ("OPENAI_MODEL", ""),
            ("OPENAI_MAX_TOKENS", ""),
            ("OPENAI_TEMPERATURE", ""),
        ])
        .endpoint_settings();
        assert_eq!(settings, Ok(EndpointSettings::default()));
    }

    proptest! {
        #[test]
        fn variables_are_read_unchanged(
            url in "[!-~]{1,40}",
            key in "[!-~]{1,40}",
            model in "\\PC{1,40}",
            max_tokens in 1..=u64::MAX,
            temperature in 0.0..1e9f64,
        ) {
            let (tokens, heat) = (max_tokens.to_string(), temperature.to_string());
            let settings = variables(&[
                ("OPENAI_BASE_URL", &url),
                ("OPENAI_API_KEY", &key),
                ("OPENAI_MODEL", &model),
                ("OPENAI_MAX_TOKENS", &tokens),
                ("OPENAI_TEMPERATURE", &heat),
            ])
            .endpoint_settings();
            prop_assert_eq!(settings, Ok(EndpointSettings {
                base_url: Some(url),
                key: Some(Key::Variable("OPENAI_API_KEY".to_owned())),
                model: Some(model),
                max_tokens: Some(max_tokens),
                temperature: Some(temperature),
                ..EndpointSettings::default()
            }));
        }

        #[test]
        fn any_text_is_a_number_or_an_error(text in "\\PC{1,12}") {
            let tokens = variables(&[("OPENAI_MAX_TOKENS", &text)]).endpoint_settings().map(|settings| settings.max_tokens);
            prop_assert_eq!(tokens.ok(), text.trim().parse().ok().filter(|number| *number > 0).map(Some));
            let heat = variables(&[("OPENAI_TEMPERATURE", &text)]).endpoint_settings().map(|settings| settings.temperature);
            let expected = text.trim().parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0);
            prop_assert_eq!(heat.ok(), expected.map(Some));
        }
    }
}
