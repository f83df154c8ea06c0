"""What a study found, as plain tables that need neither Ray nor Optuna nor a device."""
