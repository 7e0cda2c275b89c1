//! The fuzz targets as plain functions.
