# For the recipes beside it: sets `url`, and waits until the server answers.
url=${OPENAI_BASE_URL:-http://127.0.0.1:8000/v1}
# The server may want no key, its clients do.
export OPENAI_API_KEY=${OPENAI_API_KEY:-unused}
# While the models are loaded the server says so with 503, for which clients have no patience.
curl --silent --fail --output /dev/null --retry 600 --retry-delay 1 --retry-connrefused \
    --header "Authorization: Bearer $OPENAI_API_KEY" "$url/models"
