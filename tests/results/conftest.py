from tests.engine.conftest import few_digits  # noqa: F401
