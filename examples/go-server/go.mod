module llamabi/examples/go-server

go 1.24

require llamabi v0.0.0

replace llamabi => ../../bindings/go
